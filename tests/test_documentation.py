"""Every code block of README.md and docs/ runs, in the order of its page, and every link leads on.

A block that cannot run here has a comment before it, which readers do not see:
`<!-- no test: the reason -->`. Its `ondes` commands must still be ones that the command accepts.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

import ondes
from ondes.cli import main
from ondes.cli import ondes as command_line

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
if not DOCS.exists():
    pytest.skip("the documentation is in the checkout only", allow_module_level=True)
sys.path.insert(0, str(DOCS))

PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
MARKDOWN = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCE = re.compile(
    r"(?P<marker><!-- no test: (?P<reason>[^>]+) -->\n)?^```(?P<language>python|sh|console)\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SR = 16000
# Seconds of pictures, players and processes: their own tests run them, and clusters. Here the
# options are checked.
EXPENSIVE = ("demo", "report", "studio")


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    reason: str | None


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    return [Block(m["language"], m["code"], m["reason"]) for m in FENCE.finditer(text)]


def page_name(page):
    return page.relative_to(ROOT).as_posix()


# ---- Recordings under the names that the pages use ----


def tone(hertz, seconds, seed):
    """A tone with harmonics that starts and stops, over a little noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * SR)) / SR
    sound = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 5))
    return 0.1 * sound * (np.sin(3 * time + seed) > 0) + 0.01 * rng.standard_normal(len(time))


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documentation")
    kinds = {
        "lectures": 150, "records": 440, "strings": 330, "drums": 90, "album": 220, "more": 260,
        "other-album": 230, "calls": 3000, "wind": 500, "normal": 50, "today": 50, "archive": 180,
        "recordings": 200, "held-out": 210, "piano": 270, "talk": 150,
    }  # fmt: skip
    for seed, (kind, hertz) in enumerate(kinds.items()):
        (folder / kind).mkdir()
        suffix = "flac" if kind in ("album", "more", "other-album") else "wav"
        for n in range(2):
            name = "hour" if kind == "today" and n == 0 else f"take{n}"
            soundfile.write(folder / kind / f"{name}.{suffix}", tone(hertz, 2, seed + n), SR)
    mixture = tone(150, 3, 0) + tone(440, 3, 3)
    for name in ("broadcast", "tune", "field", "song", "mix", "band"):
        soundfile.write(folder / f"{name}.wav", mixture, SR)
    soundfile.write(folder / "talk.wav", np.tile(mixture, 4), SR)  # with a moment at 0:09
    soundfile.write(folder / "broadcast.mp3", mixture, SR)
    (folder / "pond").mkdir()
    soundfile.write(folder / "pond" / "20240131_063000.wav", mixture, SR)
    soundfile.write(folder / "night.wav", mixture, SR)
    soundfile.write(folder / "concert.flac", np.tile(mixture, 6), SR)
    for name, kind in {"frog": "calls", "rain": "wind"}.items():
        ondes.learn(folder / kind, 8).save(folder / f"{name}.ondes")
    grouped = ondes.discover_sources(mixture, 2, sr=SR, n_components=4, n_passes=1)
    grouped.save(folder / "talk.ondes")
    stereo = np.stack([mixture, np.roll(mixture, 5)], axis=1)
    soundfile.write(folder / "stereo.wav", stereo, SR)
    return folder


@pytest.fixture
def room(recordings, tmp_path, monkeypatch):
    """An own copy of the recordings, as the current folder."""
    shutil.copytree(recordings, tmp_path / "room")
    monkeypatch.chdir(tmp_path / "room")
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "room"


# ---- Code ----


def commands_of(code):
    """The commands of a block of shell: without comments, continued lines joined."""
    joined = code.replace("\\\n", " ")
    words = (shlex.split(line, comments=True) for line in joined.splitlines())
    return [each for each in words if each]


def check_options(words):
    """Raise where the command line does not know this command or one of its options."""
    command = command_line.commands[words[1]]
    command.make_context(words[1], list(words[2:]))


def run_command(words):
    assert words[0] in ("ondes", "make"), (
        f"{' '.join(words)} does not run here: mark its block with <!-- no test: reason -->"
    )
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        return
    if words[1].startswith("-") or "--help" in words:
        return
    if words[1] in EXPENSIVE or "--cluster" in words:
        check_options(words)
        return
    with pytest.raises(SystemExit) as end:
        main(words[1:])
    assert end.value.code == 0, " ".join(words)


@pytest.mark.filterwarnings("default")  # a page may do what warns; it must not fail
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=page_name)
def test_every_block_of_the_page_runs(page, room):
    namespace = {"__name__": "documentation"}
    for block in blocks_of(page):
        if block.language == "python":
            code = compile(block.code, page_name(page), "exec")
            if block.reason is None:
                exec(code, namespace)
        elif block.reason is None:
            for words in commands_of(block.code):
                run_command(words)
        else:
            for words in commands_of(block.code):
                if "ondes" in words[:1]:
                    check_options(words)


def test_a_marked_block_states_its_reason_and_few_are_marked():
    marked = [(page, block) for page in PAGES for block in blocks_of(page) if block.reason]
    unmarked = [block for page in PAGES for block in blocks_of(page) if not block.reason]
    assert all(len(block.reason) > 10 for _, block in marked)
    assert len(unmarked) > len(marked)


def test_wrong_options_on_a_page_are_found():
    import click

    with pytest.raises(click.UsageError):
        check_options(shlex.split("ondes learn a.wav -o b.ondes --no-such-option"))
    with pytest.raises(KeyError):
        check_options(shlex.split("ondes lern a.wav"))


# ---- Links ----

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def slug(heading):
    """The anchor of a heading, as forges and MyST make it."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors_of(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def leads_nowhere(page, link):
    """Why a local link of a page is broken, or None."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    made = re.search(r"examples/(?:images/sphx_glr_)?(plot_\w+?)(?:_\d\d\d\.png|\.rst)$", path)
    if made:  # written by the gallery from this script
        target = DOCS / "gallery" / f"{made[1]}.py"
    elif path.endswith("examples/index.rst"):
        target = DOCS / "gallery" / "GALLERY_HEADER.rst"
    elif path.endswith("reference/index.rst"):
        target = DOCS / "pages.py"
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors_of(target):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", MARKDOWN, ids=page_name)
def test_local_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    broken = {link: why for link in links if (why := leads_nowhere(page, link))}
    assert not broken


def test_the_checker_of_the_built_site_finds_broken_links(tmp_path):
    from check_links import broken_links

    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="#top">t</a>'
                                     '<img src="no.png"><h1 id="top">a</h1>')  # fmt: skip
    (tmp_path / "b.html").write_text('<p id="there">there</p><a href="https://example.org">e</a>')
    assert broken_links(tmp_path) == ["a.html: b.html#here", "a.html: no.png"]


# ---- What the pages state ----


def test_the_reference_has_every_public_name(tmp_path):
    from pages import write_guides, write_reference

    write_reference(tmp_path / "reference")
    listed = re.findall(r"^   ondes\.(\w+)$", (tmp_path / "reference/index.rst").read_text(), re.M)
    assert sorted(listed) == sorted(ondes.__all__)
    for name in ("start", "operations", "choosing", "a-new-one"):
        (tmp_path / f"{name}.md").write_text("# A page")
    write_guides(tmp_path)
    assert "\n\nchoosing\na-new-one\noperations\n" in (tmp_path / "guides.md").read_text()


def test_every_command_has_a_page(tmp_path):
    from pages import write_commands

    page = tmp_path / "commands.md"
    page.write_text((DOCS / "commands.md").read_text())
    for _ in range(2):  # a second build finds the page of the first
        write_commands(tmp_path / "commands")
    names = list(command_line.commands)
    assert sorted(path.stem for path in (tmp_path / "commands").iterdir()) == sorted(names)
    assert re.findall(r"^commands/(\w+)$", page.read_text(), re.MULTILINE) == names
    assert page.read_text().count("# The command line") == 1
    for name in names:  # what the page of a command is made of
        text = (tmp_path / "commands" / f"{name}.rst").read_text()
        module, attribute = re.search(r"click:: ([\w.]+):(\w+)", text).groups()
        assert getattr(sys.modules[module], attribute) is command_line.commands[name]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_figures_with_a_link_to_a_table_are_in_it(page):
    linked = re.compile(r"\[([^]]*\d \S[^]]*)\]\(([^)#]*results/\w+\.md)[^)]*\)")
    for text, table in linked.findall(page.read_text(encoding="utf-8")):
        figures = re.findall(r"[−-]?\d+\.\d+", text)
        stated = (page.parent / table).read_text(encoding="utf-8")
        for figure in figures:
            assert re.search(rf"(?<![\d.-]){figure.replace('−', '-')}(?![\d.])", stated), figure


def test_make_runs_programs_of_its_own_environment_only():
    """Those of a copied clone begin with the path of the original's Python."""
    recipes = re.findall(r"^\t.*$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    programs = set(re.findall(r"(?:bin|\$\(BIN\))/(\w+)", "\n".join(recipes)))
    assert programs == {"python"}


def test_every_page_is_reached_from_the_first():
    """Or Sphinx warns; here it is found without building."""
    from pages import LISTED_ELSEWHERE

    lists = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    listed = set(re.findall(r"^([\w/]+)$", lists, re.MULTILINE))
    named = {*LISTED_ELSEWHERE, *(page.stem for page in (DOCS / "tutorials").glob("*.md"))}
    for name in named - {"index"}:
        assert name in listed or f"tutorials/{name}" in listed, name


def test_the_first_page_begins_with_sounds_and_the_picture(tmp_path, monkeypatch):
    from first_sounds import write_first_sounds

    monkeypatch.setenv("ONDES_RECORDINGS", str(tmp_path))  # where there is none: a tune of our own
    write_first_sounds(tmp_path)
    text = (tmp_path / "first.html").read_text()
    files = re.findall(r"src='_static/(first/\d\.ogg)'", text)
    song, bass, rest = (soundfile.read(tmp_path / "static" / name)[0] for name in files)
    assert np.std(bass + rest - song) < 0.2 * np.std(song)  # Vorbis is lossy
    assert min(np.std(bass), np.std(rest)) > 0.3 * np.std(song)
    beginning = (DOCS / "index.md").read_text().partition("```sh")[0]
    assert beginning.index(":file: first.html") < beginning.index("figures/studio_music.webp")


def test_first_uses_of_a_term_are_found_and_only_these():
    from terms import first_uses, forms_of, glossary_terms

    terms = glossary_terms((DOCS / "glossary.md").read_text(encoding="utf-8"))
    assert {"dictionary", "NMF", "SI-SDR", "STFT", "component"} <= set(terms)
    assert terms == sorted(terms, key=str.lower)
    forms, seen = forms_of(terms), set()
    text = "In dictionary.wav: Dictionaries by NMF, stem-like, stems/, a dictionary of stems."
    found = [(text[start:end], term) for start, end, term in first_uses(text, forms, seen)]
    assert found == [("Dictionaries", "dictionary"), ("NMF", "NMF"), ("stems", "stem")]
    assert first_uses("Another dictionary in two mini-batches", forms, seen) == [(26, 38, "batch")]
    assert first_uses("k components", {"K": "K"}, set()) == []
    assert first_uses("A Gaussian mixture", forms, set()) == []


def test_one_version_is_stated_everywhere():
    version = ondes.__version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == version
    for name, line in {
        "CITATION.cff": f"version: {version}",
        "docs/cite.md": f"version = {{{version}}}",
        "packaging/conda/recipe.yaml": f'version: "{version}"',
        "CHANGELOG.md": version,
    }.items():
        assert line in (ROOT / name).read_text(), name


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    yaml = pytest.importorskip("yaml")
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = stated["project"]
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    asked = recipe["requirements"]
    # conda-forge's names, where they are not those of PyPI
    names = {
        "pysoundfile": "soundfile", "soxr-python": "soxr", "matplotlib-base": "matplotlib",
        "pytorch": "torch", "python-sounddevice": "sounddevice",
    }  # fmt: skip

    def as_on_pypi(lines):
        return {names.get(name, name) + bound for name, bound in map(str.split, lines)}

    python, *run = asked["run"]
    assert python == f"python {project['requires-python']}"
    assert as_on_pypi(run) == set(project["dependencies"])
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    without_brackets = {re.sub(r"\[.*\]", "", each) for each in extras}
    assert as_on_pypi(asked["run_constraints"]) == without_brackets
    assert as_on_pypi(asked["host"][2:]) == set(stated["build-system"]["requires"])
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["license_file"] in project["license-files"]


def test_the_gallery_has_at_least_ten_examples_that_compile():
    scripts = sorted((DOCS / "gallery").glob("plot_*.py"))
    assert len(scripts) >= 10
    on_recordings = re.findall(r'"(plot_\w+)": "\w+/', (DOCS / "conf.py").read_text())
    assert len(on_recordings) >= 2
    assert set(on_recordings) <= {script.stem for script in scripts}
    for script in scripts:
        with contextlib.suppress(ImportError):
            compile(script.read_text(encoding="utf-8"), script.name, "exec")


# ---- the tree ----


def test_the_map_of_the_tree_is_the_tree():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"```\n(signal/.*?)```", text, re.DOTALL)
    assert len(block.splitlines()) == 10
    source, folder, named = ROOT / "src" / "ondes", None, set()
    for line in block.splitlines():
        *parts, _ = re.split(r"\s{2,}", line.strip())
        names = ", ".join(parts).split(", ")
        if not line.startswith(" "):
            folder = source / names[0]
        for name in names:
            places = [folder / name, folder / f"{name}.py", source / name, ROOT / name]
            assert any(each.exists() for each in places), name
            named.add(name)
    packages = {f"{each.parent.name}/" for each in source.glob("*/__init__.py")}
    assert packages <= named


def test_no_two_modules_have_one_name():
    paths = [path for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"]
    names = [path.name for path in paths]
    assert sorted(set(names)) == sorted(names)


def test_functions_have_at_most_a_hundred_lines_beside_their_docstring():
    long = []
    for path in (ROOT / "src").rglob("*.py"):
        if path.name == "fused_solve.py":  # a kernel of a GPU is one function
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                documented = len((ast.get_docstring(node, clean=False) or "").splitlines())
                if node.end_lineno - node.lineno + 1 - documented > 100:
                    long.append(f"{path.name}: {node.name}")
    assert long == []


def test_a_separator_takes_at_most_six_parameters():
    assert len(inspect.signature(ondes.Separator).parameters) <= 6
