"""Run the kernel's tests on another machine's Python, under qemu."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["check_aarch64"]

# Debian's release that has this version of Python for 64-bit Arm.
RELEASES = {"3.11": "bookworm", "3.13": "trixie"}
REQUIRED = (
    "numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "cloudpickle", "narwhals",
    "pytest", "hypothesis", "pluggy", "iniconfig", "packaging", "pygments", "sortedcontainers",
)  # fmt: skip
# Parity with the reference, and that neither neighbours nor threads matter: what NEON computes.
TESTS = "reference_to or reference and long or bins or changes_no_bit or pairs"


def check_aarch64(wheels: list[Path], tests: Path) -> None:
    """The tests of the kernel for each wheel; reported as not run where the tools are missing."""
    missing = [name for name in ("qemu-aarch64", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        print(f"aarch64: {' and '.join(missing)} not found, so the wheels are not tested.")
        return
    for wheel in wheels:
        version = "3.13" if "abi3" in wheel.name else "3.11"
        with tempfile.TemporaryDirectory() as name:
            root, site = Path(name, "root"), Path(name, "site")
            _unpack_debian(version, root)
            _unpack_wheels(version, wheel, site)
            shutil.copytree(tests, Path(name, "tests"))
            Path(name, "pytest.ini").write_text("[pytest]\n")
            python = ["qemu-aarch64", "-L", root, "-E", f"PYTHONPATH={site}",
                      root / f"usr/bin/python{version}"]  # fmt: skip
            script = ("import platform; from ondes.nmf.backends import _native; "
                      "print(platform.machine(), *_native.instruction_sets())")  # fmt: skip
            where = subprocess.check_output([*python, "-c", script], text=True).strip()
            done = subprocess.run(
                [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", TESTS,
                 "tests/test_native.py"],
                cwd=name, text=True, capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"{done.stdout[-8000:]}{done.stderr}\n{wheel.name} failed.")
            print(f"{wheel.name} under qemu, {where}: {done.stdout.strip().splitlines()[-1]}")


def _unpack_debian(version: str, root: Path) -> None:
    """Debian's Python and C++ libraries for Arm: unpacked, nothing is installed."""
    packages = f"python{version},libpython{version}-stdlib,libstdc++6"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=extract", "--arch=arm64", f"--include={packages}",
         RELEASES[version], root],
        check=True, capture_output=True,
    )  # fmt: skip
    if not (root / "lib").exists():  # a merged /usr, whose links nothing has made
        (root / "lib").symlink_to("usr/lib")


def _unpack_wheels(version: str, wheel: Path, site: Path) -> None:
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in (17, 26, 27, 28)]
    platforms += ["manylinux2014_aarch64", re.sub(r".*-(\w+).*\.whl", r"\1", wheel.name)]
    given = [option for each in platforms for option in ("--platform", each)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
         "--python-version", version, *given, "--target", site, *REQUIRED, wheel],
        check=True,
    )  # fmt: skip
