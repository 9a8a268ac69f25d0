"""Print the lowest versions that pyproject.toml allows, as constraints for pip.

`make oldest` installs them and runs the tests on them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

NOT_TESTED = ("torch",)  # too large to be installed twice


def lowest(project):
    """Requirements with `==` in place of `>=`."""
    extras = project["optional-dependencies"]
    named = [each for extra, parts in extras.items() if extra not in NOT_TESTED for each in parts]
    for requirement in (*project["dependencies"], *named):
        name, version = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement).groups()
        yield f"{name}=={version}"


if __name__ == "__main__":
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text()
    print(*lowest(tomllib.loads(text)["project"]), sep="\n")
