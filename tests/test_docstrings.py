"""The public interface is complete and documented, and every example prints what it says."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ondes

PUBLIC = (
    "score_separation",
    *(
        "AudioSettings",
        "ClusterError",
        "ComponentChoice",
        "Compute",
        "Denoiser",
        "DeviceError",
        "Dictionary",
        "FileError",
        "GroupLog",
    ),
    *("GrowingMemory", "HalfLife", "L1", "LogSparsity", "OndesError", "OnlineNMF", "PerPass"),
    *(
        "RawFormat",
        "Separator",
        "Smoothness",
        "Solver",
        "Sources",
        "Statistics",
        "Stft",
        "TrainedSeparator",
    ),
    *("choose_components", "levels"),
    *("denoise", "denoise_file", "discover_sources", "itakura_saito", "learn", "load", "read"),
    *("separate", "separate_file", "train"),
)
TOO_SLOW_FOR_AN_EXAMPLE = ("train",)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(ondes.__path__, "ondes.")
    if not name.endswith(("__main__", "_native"))
]
NEEDS = {
    "ondes.learning.gpu": "torch",
    "ondes.learning.separator_training.mixtures": "torch",
    "ondes.learning.separator_training.network": "torch",
    "ondes.learning.separator_training.trainer": "torch",
    "ondes.nmf.device_trainer": "torch",
    "ondes.models.device_masks": "torch",
    "ondes.separation.device": "torch",
    "ondes.nmf.backends.torch": "torch",
    "ondes.nmf.backends.devices": "torch",
    "ondes.nmf.backends.fused": "triton",
    "ondes.learning.cluster.dask_engine": "distributed",
    "ondes.studio.routes": "starlette",
    "ondes.studio.server": "uvicorn",
}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    for prefix, package in NEEDS.items():
        if name.startswith(prefix) and importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    failures, _ = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failures == 0


# ---- the public interface ----


def test_the_public_interface_is_this_and_nothing_else():
    code = "import ondes; print(*sorted(dir(ondes)), sep='\\n')"  # where nothing was imported yet
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == sorted([*PUBLIC, "__version__"])
    assert sorted(ondes.__all__) == sorted(PUBLIC)


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="module 'ondes' has no attribute 'OnlineISNMF'"):
        _ = ondes.OnlineISNMF


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_that_of_the_module_where_it_is_defined(name):
    value = getattr(ondes, name)
    module = importlib.import_module(value.__module__)
    assert getattr(module, name) is value
    assert name in getattr(module, "__all__", [name])


def test_the_pages_name_only_what_exists():
    used = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"\bondes\.([A-Za-z_]\w*)", page.read_text())
    }
    files = {"ondes", "service", "checkpoint", "json", "flac", "monitor"}  # archive.ondes
    modules = {name.split(".")[1] for name in MODULES}
    assert used
    wrong = {(page, name) for page, name in used if name not in {*PUBLIC, *files, *modules}}
    assert not wrong


# ---- docstrings ----


def sections(docstring):
    """The text of a numpydoc docstring by the title of its sections."""
    parts = re.split(r"^(\w[\w ]*)\n-+\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return {"Summary": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def documented(section):
    """The names that a section describes: "a, b : int", or "a" alone on its line."""
    entries = re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: :.*)?$", section, re.MULTILINE)
    return {name.lstrip("*") for entry in entries for name in entry.split(", ")}


def undocumented(value):
    """Parameters that are not described by a section, nor by the formula of one without."""
    found = sections(value.__doc__)
    described = documented(found.get("Parameters", "")) | documented(found.get("Attributes", ""))
    described = described or set(re.findall(r"\w+", found["Summary"]))
    parameters = inspect.signature(value).parameters
    return [name for name in parameters if name not in described and name != "self"]


def is_plain_error(value):
    """An error that is raised with its message alone."""
    return inspect.isclass(value) and issubclass(value, Exception) and value is not ondes.FileError


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring_with_its_parameters_and_an_example(name):
    value = getattr(ondes, name)
    found = sections(value.__doc__)
    assert found["Summary"].split("\n\n")[0].strip().endswith(".")
    if is_plain_error(value):
        return
    assert not undocumented(value)
    has_example = ">>> " in found.get("Examples", "")
    assert has_example == (name not in TOO_SLOW_FOR_AN_EXAMPLE)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name[0].isupper()])
def test_public_methods_have_docstrings_with_their_parameters(name):
    for own, method in vars(getattr(ondes, name)).items():
        function = getattr(method, "__func__", method)  # of a class method
        if own.startswith("_") or not inspect.isfunction(function):
            continue
        assert function.__doc__, own
        if "Parameters" in sections(function.__doc__):
            missing = [each for each in undocumented(function) if each != "cls"]
            assert not missing, own


def test_a_missing_parameter_is_noticed():
    def function(one, two, *rest, **others):
        """Summary.

        Parameters
        ----------
        one : int
        *rest, **others
            More.
        """

    assert undocumented(function) == ["two"]
