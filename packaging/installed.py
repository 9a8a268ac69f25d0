"""Install a wheel into an empty environment without a compiler, and run the tests there.

    python packaging/installed.py --here

runs the same tests from an empty folder with the `ondes` that this interpreter has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["TESTS", "check_installed"]

# The tests that need nothing of the checkout but themselves, and little time.
TESTS = (
    "channels", "estimator", "learn_command", "model_file", "native", "platforms", "scene",
    "silence", "stft",
)  # fmt: skip
TOOLS = ("sh", "env", "cat", "ls", "uname", "rm", "mkdir", "sleep", "kill", "ffmpeg")


def check_installed(
    package: Path, python: str, tests: Path, tests_to_run: tuple[str, ...] = TESTS
) -> None:
    """Raise where the package does not install, or a test fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = _without_compiler(folder)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        here = folder / "venv" / "bin"
        environment["PATH"] = f"{here}{os.pathsep}{environment['PATH']}"

        def run(*command: object) -> str:
            options = {"cwd": folder, "env": environment, "text": True, "capture_output": True}
            done = subprocess.run([str(part) for part in command], check=False, **options)
            if done.returncode:
                print(done.stdout[-8000:], done.stderr[-4000:])
                raise SystemExit(f"{package.name} with {python}: {command[1:4]} failed.")
            return done.stdout

        source = package.suffix == ".gz"
        if not source:
            run(here / "pip", "install", "--quiet", "--only-binary=:all:", "pytest", "hypothesis",
                f"{package}[formats,report]")  # fmt: skip
        else:  # where nothing compiles, the build gives a pure package
            run(here / "pip", "install", "--quiet", f"{package}[report]")
        backend = run(here / "ondes", "info", "--system")
        run(here / "ondes", "demo", "--seconds", "4", "-o", folder / "demo")
        result = "its demo"
        if tests_to_run:
            names = _copy_tests(tests, folder, tests_to_run)
            result = run(here / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                         *names).strip().splitlines()[-1]  # fmt: skip
        kernel = next((line.strip() for line in backend.splitlines() if "native" in line), "")
        print(f"{package.name} with {python}: {result}; {kernel}")


def _copy_tests(tests: Path, folder: Path, to_run: tuple[str, ...]) -> list[str]:
    """Copy the tests into an empty folder; the files to run, relative to it."""
    shutil.copytree(tests, folder / "tests")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    names = [f"tests/test_{each}.py" for each in to_run]
    return [each for each in names if (folder / each).exists()]


def _without_compiler(folder: Path) -> dict[str, str]:
    """The environment with a PATH that has a few tools and no compiler."""
    tools = folder / "tools"
    tools.mkdir()
    for name in TOOLS:
        if (path := shutil.which(name)) is not None:
            (tools / name).symlink_to(path)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYENV", "ONDES"))}
    kept |= {"PATH": str(tools), "CC": "none", "CXX": "none"}
    return kept


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        chosen = _copy_tests(Path(__file__).parents[1] / "tests", Path(name), TESTS)
        sys.exit(
            subprocess.run([sys.executable, "-m", "pytest", "-q", *chosen], cwd=name).returncode
        )
