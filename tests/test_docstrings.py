"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import ondes

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(ondes.__path__, "ondes.")
    if not name.endswith(("__main__", "_native"))
]


NEEDS = {"card": "torch", "torch": "torch", "devices": "torch", "fused": "triton"}


def packages_needed(name):
    parts = name.split(".")
    return {package for part, package in NEEDS.items() if any(p.startswith(part) for p in parts)}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    for package in packages_needed(name):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    failures, _ = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failures == 0


def test_every_public_name_is_there_and_documented():
    assert dir(ondes)
    for name in ondes.__all__:
        assert getattr(ondes, name).__doc__
