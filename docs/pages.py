"""Pages that are written when the site is built: references of Python and the command line, and
the list of guides."""

from __future__ import annotations

from pathlib import Path

import ondes

__all__ = ["write_commands", "write_guides", "write_reference"]

GROUPS = {
    "From recordings to dictionaries": ["learn", "load", "Dictionary", "AudioSettings"],
    "Separation": [
        "separate", "separate_file", "Separator", "Sources", "Compute", "discover_sources",
        "Denoiser", "denoise", "denoise_file", "train", "TrainedSeparator",
    ],
    "Tables": ["levels"],
    "Arrays: the scikit-learn estimator": [
        "OnlineNMF", "choose_components", "ComponentChoice", "Solver", "Statistics",
        "itakura_saito",
    ],
    "Forgetting": ["GrowingMemory", "HalfLife", "PerPass"],
    "Penalties": ["GroupLog", "L1", "LogSparsity", "Smoothness"],
    "Sound": ["read", "Stft", "RawFormat"],
    "Errors": ["OndesError", "FileError", "DeviceError", "ClusterError"],
}  # fmt: skip
# Guides in their order; a page that is listed nowhere comes before the last.
GUIDES = ["choosing", "limits", "recordings", "separation", "live", "microphones", "tables",
          "studio"]  # fmt: skip
LAST_GUIDES = ["dictionaries", "gpu", "operations"]
LISTED_ELSEWHERE = {
    "index", "guides", "start", "commands", "algorithm", "results", "help", "troubleshooting",
    "faq", "glossary", "cite", "contributing", "changelog",
}  # fmt: skip
FURTHER = "Further names"
# Not in `ondes` itself, since few need them.
BESIDE = {"Synthetic sound and scores": ["ondes.demo_scene.make_scene", "ondes.demo_scene.Scene",
                                    "ondes.scores.si_sdr"]}  # fmt: skip

PAGE = """\
Python reference
================

All public names of ``ondes``. Modules are imported when one of their names is first used, so
``import ondes`` is fast. In every array a row is a frame: spectra have the shape
(n_frames, n_bins), activations have the shape (n_frames, n_components).

"""


def write_reference(folder: Path) -> None:
    """Write index.rst into `folder`; a public name in no group gets into the last one."""
    grouped = {name for names in GROUPS.values() for name in names}
    groups = dict(GROUPS)
    if further := [name for name in ondes.__all__ if name not in grouped]:
        groups[FURTHER] = further
    text = PAGE
    for title, names in groups.items():
        known = [f"ondes.{name}" for name in names if name in ondes.__all__]
        text += _section(title, known)
    for title, names in BESIDE.items():
        text += _section(title, names)
    folder.mkdir(exist_ok=True)
    _write(folder / "index.rst", text)


def write_commands(folder: Path) -> None:
    """Write a page for each command into `folder`, and commands.md beside it, which lists them."""
    from ondes.cli import ondes as command_line

    folder.mkdir(exist_ok=True)
    listed = ["", "| command | what it does |", "|---|---|"]
    names = list(command_line.commands)
    for name in names:
        help_of_name = command_line.commands[name].get_short_help_str(100).rstrip(".")
        listed.append(f"| [`ondes {name}`](commands/{name}.rst) | {help_of_name} |")
        # It makes the title of the page as well.
        made_by = command_line.commands[name].callback
        where = f"{made_by.__module__}:{made_by.__name__}"
        text = f".. click:: {where}\n   :prog: ondes {name}\n   :nested: none\n"
        _write(folder / f"{name}.rst", text)
    toctree = ["", "```{toctree}", ":hidden:", "", *(f"commands/{name}" for name in names), "```"]
    page = folder.with_suffix(".md")
    text = page.read_text(encoding="utf-8").partition("\n<!-- the commands -->")[0]
    _write(page, "\n".join([text, "<!-- the commands -->", *listed, *toctree, ""]))


def write_guides(folder: Path) -> None:
    """Write guides.md, which lists all pages of `folder` that are listed nowhere else."""
    pages = {page.stem for page in folder.glob("*.md")} - LISTED_ELSEWHERE
    others = sorted(pages.difference(GUIDES, LAST_GUIDES))
    listed = [name for name in [*GUIDES, *others, *LAST_GUIDES] if name in pages]
    _write(folder / "guides.md", "\n".join([
        "# Guides", "", "```{toctree}", ":maxdepth: 1", "", *listed, "```", ""
    ]))  # fmt: skip


def _write(page: Path, text: str) -> None:
    if not page.exists() or page.read_text() != text:  # or Sphinx reads it again
        page.write_text(text)


def _section(title: str, names: list[str]) -> str:
    listed = "".join(f"   {name}\n" for name in names)
    return (
        f"{title}\n{'-' * len(title)}\n\n"
        f".. autosummary::\n   :toctree: names\n   :nosignatures:\n\n{listed}\n"
    )
