"""Write every figure of README.md and docs/ from the results that are kept.

    python benchmarks/result_pages.py [--quick]

docs/results/ has one page per question, each with the answer first, and docs/figures has the
figures. Parts of other pages stand between two marks. What was never measured is left out, and
what measured older code says so. With --quick the pages of the paper and of the race are made from
out/quick, and written there.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]

import claims  # noqa: E402
import speed_page  # noqa: E402
from kept import KEPT, ROOT  # noqa: E402

Results = dict[str, Any]
INDEX = "docs/results.md"


@dataclass(frozen=True)
class Page:
    """A page of docs/results: a question, and the modules that answer it.

    Attributes
    ----------
    name, question : str
    modules : dict of str to str
        The module of each kept result, with `section(results)`; the first one also has
        `answer(results)`, two sentences, and `PICTURE`, a file in docs/figures, with what it shows.
    """

    name: str
    question: str
    modules: dict[str, str]


PAGES = (
    Page("paper", "Does the paper hold?",
         {"small": "grid_report", "medium": "grid_report", "large": "large_report"}),
    Page("learning", "How fast is learning, against other packages?", {"race": "race_page"}),
    Page("separation", "How good is separation?", {"separation": "separation"}),
    Page("scale", "How long do hours of audio take, and how much memory?", {"growth": "growth"}),
    Page("gpu", "What does a GPU gain?",
         {"gpu": "gpu_page", "gpu_arrays": "gpu_arrays_page"}),
    Page("cluster", "What does a cluster gain?", {"cluster": "cluster"}),
)  # fmt: skip


def whole_pages(results: dict[str, Results]) -> dict[str, str]:
    """The text of each page of docs/results by its name, and the index of them under ""."""
    pages, rows = {}, ["| question | answer | measured |", "|---|---|---|"]
    for page in PAGES:
        found = {name: results[name] for name in page.modules if name in results}
        if not found:
            continue
        modules = {name: importlib.import_module(page.modules[name]) for name in found}
        if page.name == "paper":
            answer, parts = claims.answer(found), [claims.section(found)]
            picture: tuple[str, str] | None = claims.picture(found)
        else:
            first, *_ = found
            answer, parts = modules[first].answer(found[first]), []
            picture = modules[first].PICTURE
            if hasattr(modules[first], "picture"):
                picture = modules[first].picture(found[first])
        sections = [
            f"{modules[name].section(each)}\n\n{KEPT[name].stated(each)}"
            for name, each in found.items()
        ]
        shown = f"![{picture[1]}](../figures/{picture[0]})" if picture else ""
        parts = [f"# {page.question}", answer, older(found), shown, *parts, *sections]
        pages[page.name] = "\n\n".join(part.strip() for part in parts if part) + "\n"
        rows.append(f"| [{page.question}](results/{page.name}.md) | {answer} | {dates(found)} |")
    names = "\n".join(f"results/{name}" for name in pages)
    pages[""] = (
        "# Results\n\n"
        + "\n".join(rows)
        + "\n\nAll of it is written by `benchmarks/result_pages.py` from "
        "results that are kept beside the scripts that measured them. `make figures` says which "
        "are older than the code. [Speed](speed.md) has what the commands take.\n\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )
    return pages


def older(found: dict[str, Results]) -> str:
    """What a page says under its answer, where one of its results measured older code."""
    if not any(KEPT[name].older_parts(each) for name, each in found.items()):
        return ""
    return "*Measured before later changes of the code; each section names its commit.*"


def dates(found: dict[str, Results]) -> str:
    """The days on which results were measured, and whether the code has changed since."""
    days = sorted({run["date"] for each in found.values() for run in each["measured"].values()})
    said = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{said}, older code" if older(found) else said


@dataclass(frozen=True)
class Part:
    """What stands between two marks of a page: nothing, where none of its results was measured.

    `write` is given the results that were measured, by name.
    """

    page: str
    mark: str
    results: tuple[str, ...]
    write: Callable[..., str]
    states: bool = True  # below the text, what measured it


def _from(module: str, function: str) -> Callable[..., str]:
    """A function of one result, in a module that is imported only when it is called."""

    def write(**results: Results) -> str:
        text: str = getattr(importlib.import_module(module), function)(*results.values())
        return text

    return write


PARTS = (
    Part("docs/speed.md", "case", ("growth",), _from("growth", "case_table")),
    Part("docs/speed.md", "growth", ("growth",), _from("growth", "growth_table")),
    Part("docs/speed.md", "kernels", ("kernels",), _from("speed_page", "kernels")),
    Part("docs/speed.md", "race", ("race",), _from("race_page", "readme_table")),
    Part("README.md", "three", ("unseen", "race", "growth"), speed_page.three, states=False),
    Part("docs/tables.md", "figures", ("tables",), _from("speed_page", "tables")),
    Part("docs/studio.md", "figures", ("studio",), _from("speed_page", "studio")),
    Part("docs/separation.md", "unseen", ("unseen",), _from("unseen", "table")),
    Part("docs/separation.md", "denoising", ("denoising",), _from("denoising", "table")),
    Part("docs/live.md", "live", ("live",), _from("live", "table")),
    Part("docs/microphones.md", "rooms", ("rooms",), _from("rooms_page", "table")),
    Part("docs/tutorials/counts.md", "counts", ("sparse",), _from("sparse", "table")),
    Part("docs/algorithm.md", "why-the-default", ("why_the_default",),
         _from("why_the_default", "table")),
    Part("docs/algorithm.md", "first-dictionary", ("first_dictionary",),
         _from("first_dictionary", "table")),
    Part("docs/algorithm.md", "first-dictionary, Kullback-Leibler", ("first_dictionary_kl",),
         _from("first_dictionary", "table")),
)  # fmt: skip


DRAWN = {name: module for page in PAGES for name, module in page.modules.items()} | {
    "rooms": "rooms_page"
}


def draw(results: dict[str, Results], folder: Path) -> None:
    """Every figure of docs/figures that shows results."""
    for name, module in DRAWN.items():
        drawing = importlib.import_module(module)
        if name in results and hasattr(drawing, "draw"):
            drawing.draw(results[name], folder)


def part_text(part: Part, results: dict[str, Results]) -> str:
    """The text of a part, with the sentences that say what measured it."""
    found = {name: results[name] for name in part.results if name in results}
    text = part.write(**found) if found else ""
    if not text:
        return ""
    stated = [KEPT[name].stated(each) for name, each in found.items()] if part.states else []
    return "\n\n".join([text, *stated])


def filled(page: str, part: Part, text: str) -> str:
    """A page with the text between the two marks of a part."""
    begin, end = f"<!-- {part.mark}: begin -->", f"<!-- {part.mark}: end -->"
    before, rest = page.split(begin)
    body = f"{text}\n" if text else ""
    return f"{before}{begin}\n{body}{end}{rest.split(end)[1]}"


def expected(results: dict[str, Results]) -> dict[str, str]:
    """Every page that has figures, as it should be, by its path."""
    pages = whole_pages(results)
    texts = {f"docs/results/{name}.md": text for name, text in pages.items() if name}
    texts[INDEX] = pages[""]
    for part in PARTS:
        page = texts.get(part.page) or (ROOT / part.page).read_text()
        texts[part.page] = filled(page, part, part_text(part, results))
    return texts


def kept_results() -> dict[str, Results]:
    """All results that were measured, by name."""
    return {name: each.read() for name, each in KEPT.items() if (ROOT / each.path).exists()}


def main() -> None:
    if "--quick" in sys.argv:
        folder = ROOT / "out" / "quick"
        quick = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        pages = whole_pages(quick)
        texts = {folder / "results" / f"{name}.md": pages[name] for name in pages if name}
        draw(quick, folder / "figures")
    else:
        texts = {ROOT / path: text for path, text in expected(kept_results()).items()}
        draw(kept_results(), ROOT / "docs" / "figures")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
