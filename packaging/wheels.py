"""Build the source distribution and all wheels of this machine into dist/, and check each.

    make wheels        (or: python packaging/wheels.py, with build, auditwheel, twine, ziglang)

Every wheel is made from the source distribution. Each is installed into an empty environment
without a compiler and runs the tests that need no checkout. What is not here, an interpreter or
qemu, is reported and left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from foreign import check_aarch64
from installed import check_installed
from interpreters import SUPPORTED, find_interpreters

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# One wheel of the stable interface serves 3.12 and everything later.
BUILT_WITH = {"3.11": "cp311-cp311", "3.12": "cp312-abi3"}
NAMES = {"x86_64": "x86_64", "aarch64": "aarch64", "pure": "none-any"}
KINDS = tuple(NAMES)


def main() -> int:
    """Build what is asked for, then check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, nargs="*", default=KINDS)
    parser.add_argument("--no-build", action="store_true", help="test what is in dist/")
    parser.add_argument("--no-tests", action="store_true", help="build, and do not test")
    chosen = parser.parse_args()
    pythons = find_interpreters()
    for version in SUPPORTED:
        print(f"Python {version}: {pythons.get(version, 'not found, so not tested')}")
    if chosen.no_build:
        (sdist,) = DIST.glob("*.tar.gz")
        wheels = {kind: sorted(DIST.glob(f"*{NAMES[kind]}.whl")) for kind in chosen.only}
    else:
        shutil.rmtree(DIST, ignore_errors=True)
        sdist = build_sdist()
        wheels = {kind: BUILDERS[kind](sdist, pythons) for kind in chosen.only}
    run("-m", "twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    if chosen.no_tests:
        return 0
    for kind, made in wheels.items():
        if kind == "aarch64":
            check_aarch64(made, ROOT / "tests")
            continue
        for version, python in pythons.items():
            check_installed(serving(made, version), python, ROOT / "tests")
    if "pure" in wheels:  # what `pip install` does from source where there is no compiler
        check_installed(sdist, pythons["3.11"], ROOT / "tests", ())
    print(f"{len(list(DIST.iterdir()))} files in dist/ are built and checked.")
    return 0


def run(*arguments: str, **environment: str) -> None:
    """Call Python with `arguments`; its output is shown only where it fails."""
    settings = {"env": os.environ | environment, "text": True, "capture_output": True}
    done = subprocess.run([sys.executable, *arguments], check=False, **settings)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        raise SystemExit(f"{' '.join(arguments[:4])} failed; its output is above.")


def build_sdist() -> Path:
    """From a copy of what git would commit, as a fresh clone has it."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():  # a file that was removed is listed until that is committed
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy)
        run("-m", "build", "--sdist", "--outdir", str(DIST), folder)
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    for wanted in ("native/kernel.cpp", "src/ondes/__init__.py", "tests/conftest.py", "LICENSE"):
        if wanted not in names:
            raise SystemExit(f"{sdist.name} lacks {wanted}.")
    if built := [name for name in names if name.endswith((".so", ".pyc")) or ".venv" in name]:
        raise SystemExit(f"{sdist.name} has {built[0]}, which was built here.")
    print(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size >> 10} KiB")
    return sdist


def older_libraries(folder: Path) -> dict[str, str]:
    """Link against Debian 11's C++ library where it can be had: older systems load the wheel."""
    if shutil.which("mmdebstrap") is None:
        return {}
    root = folder / "root"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=extract", "--include=libstdc++6", "bullseye", root],
        check=True, capture_output=True,
    )  # fmt: skip
    (library,) = root.glob("usr/lib/*/libstdc++.so.6.0.*")
    (folder / "lib").mkdir()
    shutil.copy(library, folder / "lib" / "libstdc++.so")
    return {"LDFLAGS": f"-L{folder / 'lib'}"}


def build_here(sdist: Path, pythons: dict[str, str]) -> list[Path]:
    """Wheels for this machine, with the tag that their symbols allow."""
    with tempfile.TemporaryDirectory() as name:
        linked = older_libraries(Path(name))
        return [
            repaired(make_wheel(sdist, python, folder, **linked), folder)
            for python, folder in rooms(pythons)
        ]


def build_aarch64(sdist: Path, pythons: dict[str, str]) -> list[Path]:
    """Wheels for 64-bit Arm under Linux, by a cross-compiler."""
    made = []
    for python, folder in rooms(pythons):
        suffix = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"],
            text=True,
        ).strip()
        settings = {
            "CXX": str(Path(__file__).with_name("zig-c++")),
            # nanobind's headers leave it to libstdc++ to declare stderr; libc++ does not.
            "CXXFLAGS": "-include cstdio",
            "ZIG_PYTHON": sys.executable,
            "ZIG_TARGET": "aarch64-linux-gnu.2.17",
            "CMAKE_ARGS": "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64",
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            "SETUPTOOLS_EXT_SUFFIX": suffix.replace("x86_64", "aarch64"),
        }
        made.append(repaired(make_wheel(sdist, python, folder, **settings), folder))
    return made


def build_pure(sdist: Path, pythons: dict[str, str]) -> list[Path]:
    """The wheel without the compiled kernel."""
    options = ("-Cwheel.cmake=false", "-Cwheel.py-api=py3")
    with tempfile.TemporaryDirectory() as folder:
        made = make_wheel(sdist, next(iter(pythons.values())), Path(folder), options)
        return [Path(shutil.copy(made, DIST))]


BUILDERS = {"x86_64": build_here, "aarch64": build_aarch64, "pure": build_pure}


def rooms(pythons: dict[str, str]):
    """Each interpreter that a wheel is built with, and an empty folder."""
    for version in BUILT_WITH:
        if version in pythons:
            with tempfile.TemporaryDirectory() as folder:
                yield pythons[version], Path(folder)


def make_wheel(
    sdist: Path, python: str, folder: Path, options: tuple[str, ...] = (), **environment: str
) -> Path:
    """Build the wheel of one interpreter."""
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", *options]
    # CMake and its compilers come from PATH: in a shim's folder they may be another Python's.
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(sdist)],
        check=True, env=os.environ | environment,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    if not options and "none-any" in wheel.name:
        raise SystemExit(f"The kernel does not compile with {python}; `pip wheel -v` says why.")
    return wheel


def repaired(wheel: Path, folder: Path) -> Path:
    """`wheel` with a manylinux tag, in dist/."""
    kept = folder / "repaired"
    run("-m", "auditwheel", "repair", "--wheel-dir", str(kept), str(wheel),
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # fmt: skip
    (made,) = kept.glob("*.whl")
    if "abi3" in made.name:
        run("-m", "abi3audit", "--strict", str(made))
    print(made.name)
    return Path(shutil.move(made, DIST))


def serving(wheels: list[Path], version: str) -> Path:
    """The wheel that pip would choose for a version of Python."""
    if len(wheels) == 1:
        return wheels[0]
    tag = "cp311-cp311" if version == "3.11" else "abi3"
    return next(wheel for wheel in wheels if tag in wheel.name)


if __name__ == "__main__":
    sys.exit(main())
