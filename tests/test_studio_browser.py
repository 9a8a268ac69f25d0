"""The studio in a real browser: by clicks, drags and keys, with sound."""

import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_separation import speech_like

import ondes
from ondes.demo_scene import make_scene
from ondes.separation import Sources, separate
from ondes.studio.work_file import read_work

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

AXE = Path("build/axe/node_modules/axe-core/axe.min.js")
# Elements whose look changes over some time, and not at once.
LASTING_CHANGES = (
    "[...document.querySelectorAll('*')].filter((each) => { const style = getComputedStyle(each);"
    "return `${style.transitionDuration}, ${style.animationDuration}`.split(', ')"
    ".some((time) => parseFloat(time) > 0); }).map((each) => each.outerHTML.slice(0, 80))"
)
SONG = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"))
SONG = SONG / "music" / "wesnoth" / "transience.ogg"
SR = 22050
HOSTILE = '<img src=x onerror="document.title=1">'


class Studio:
    """A served studio and a page of it; everything that it must not do is collected."""

    def __init__(self, browser, address):
        self.address, self.faults = address, []
        origin = "/".join(address.split("/")[:3])
        self.page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda each: self._console(each))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda each: self._request(each.url, origin))
        self.page.on("dialog", lambda each: self.faults.append(each.message))
        self.page.goto(address)

    def _console(self, message):
        # Requests that are answered with a sentence are shown as errors by the browser itself.
        is_answer = "Failed to load resource" in message.text
        if message.type == "error" and not is_answer:
            self.faults.append(message.text)

    def _request(self, url, origin):
        if not url.startswith((origin, "data:", "blob:")):
            self.faults.append(url)

    def eval(self, expression):
        return self.page.evaluate(expression)

    def wait(self, expression, seconds=30):
        """Wait until an expression holds; the policy of the page forbids playwright's own way."""
        end = time.monotonic() + seconds
        while not (value := self.eval(expression)):
            assert time.monotonic() < end, f"never: {expression}"
            time.sleep(0.05)
        return value

    def idle(self):
        self.wait("!['running', undefined].includes(document.documentElement.dataset.job)")

    def drawn(self):
        self.wait("ondesStudio.timeline.isComplete")

    @property
    def state(self):
        with urllib.request.urlopen(f"{self.address}state") as response:
            return json.load(response)

    def groups(self):
        return {
            group["name"]: set(group["components"]) for group in self.state["project"]["groups"]
        }

    def select(self, start, end, band=None):
        """Drag along the picture or, with a band in hertz, across it."""
        box = self.page.locator("#view").bounding_box()
        shown = self.eval("ondesStudio.timeline.range")
        scale = box["width"] / (shown["end"] - shown["start"])
        x = [box["x"] + (each - shown["start"]) * scale for each in (start, end)]
        y = [box["y"] + 60, box["y"] + 70]
        if band:
            heights = [self.eval(f"ondesStudio.timeline.heightOf({each})") for each in band]
            y = [box["y"] + box["height"] * (1 - each) for each in heights]
        self.page.mouse.move(x[0], y[0])
        self.page.mouse.down()
        self.page.mouse.move(x[1], y[1], steps=4)
        self.page.mouse.up()

    @contextlib.contextmanager
    def playing(self):
        """Play all of the song again and again: on a busy machine, six seconds are soon over."""
        self.eval("ondesStudio.player.loop = { start: 0, end: ondesStudio.player.duration }")
        self.page.keyboard.press("Space")
        yield
        self.page.keyboard.press("Space")
        self.eval("ondesStudio.player.loop = null")

    def level(self, seconds=0.4):
        """The loudest of what sounds in some time."""
        end, loudest = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            loudest = max(loudest, self.eval("ondesStudio.player.level"))
        return loudest


@contextlib.contextmanager
def served(*files):
    command = [sys.executable, "-m", "ondes", "studio", "--no-browser", *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline()).group()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def song(tmp_path_factory):
    scene = make_scene(seconds=6.0, sr=SR)
    stereo = np.stack([scene.mixture, scene.mixture - 0.5 * scene.stems["bass"]], axis=1)
    path = tmp_path_factory.mktemp("song") / "band.wav"
    soundfile.write(path, stereo, SR, subtype="FLOAT")
    return path


@pytest.fixture(scope="module")
def studio(browser, song):
    with served(song) as address:
        studio = Studio(browser, address)
        studio.page.wait_for_selector(".card")
        studio.idle()
        yield studio
        studio.page.close()


@pytest.fixture(autouse=True)
def _no_faults(request):
    yield
    if "studio" in request.fixturenames:
        assert request.getfixturevalue("studio").faults == []


def _card(studio, index):
    return studio.page.locator(f".card[data-component='{index}']")


def test_cards_are_sorted_by_what_is_heard(studio):
    assert studio.page.locator("#undo").is_disabled()
    assert studio.page.locator("#saved").inner_text() == ""
    items = {item["index"]: item["share"] for item in studio.state["components"]["items"]}
    groups = [sum(items[n] for n in each) for each in studio.groups().values()]
    assert groups == sorted(groups, reverse=True)
    shares = [item["share"] for item in studio.state["components"]["items"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert studio.page.locator(".card").count() == len(shares)
    assert studio.page.locator(".lane.proposed").count() == 4


def test_the_picture_is_drawn_and_hovering_shows_a_share(studio):
    pixels = (
        "(() => { const c = document.getElementById('spectrogram');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let sum = 0; for (let i = 0; i < d.length; i += 4) sum += d[i] + d[i + 1] + d[i + 2];"
        "return sum / d.length; })()"
    )
    studio.wait(f"{pixels} > 10")
    studio.drawn()
    before = studio.eval(pixels)
    studio.page.locator(".card").first.hover()
    studio.wait(f"{pixels} < {0.8 * before}")
    studio.wait(f"{pixels} > {0.1 * before}")
    studio.page.mouse.move(0, 0)
    studio.wait(f"Math.abs({pixels} - {before}) < 1")


def test_it_sounds_and_mute_solo_and_gain_are_heard(studio):
    page = studio.page
    with studio.playing():
        studio.wait("ondesStudio.player.contextState === 'running'")
        studio.wait("ondesStudio.player.position > 0.3")
        assert studio.level() > 0.02
        mutes = page.locator(".lane .head [data-mute]")
        for n in range(mutes.count()):
            mutes.nth(n).click()
        studio.wait("ondesStudio.player.level < 1e-4")
        page.click("#original")
        studio.wait("ondesStudio.player.level > 0.02")
        page.click("#original")
        studio.wait("ondesStudio.player.level < 1e-4")
        mutes.first.click()
        studio.wait("ondesStudio.player.level > 1e-3")
        gain = page.locator(".lane .head [data-gain]").first
        gain.fill("-40")
        studio.wait("ondesStudio.player.level < 3e-3")
        gain.fill("0")
        for n in range(1, mutes.count()):
            mutes.nth(n).click()
        page.locator(".card [data-solo]").first.click()
        studio.wait("(() => { const g = ondesStudio.store.mix.soloed; return g.size === 1; })()")
        page.locator(".card [data-solo]").first.click()


def test_muting_is_heard_within_a_tenth_of_a_second(studio):
    """By the clock of the audio itself, so a busy machine does not matter."""
    studio.page.click("#view")
    studio.eval("ondesStudio.player.seek(0)")
    studio.page.keyboard.press("Space")
    studio.wait("ondesStudio.player.position > 0.5")
    n = len(studio.state["components"]["items"])
    seconds = studio.eval(
        "new Promise((done) => { const { player } = ondesStudio; const start = player.position;"
        f"player.setGains(Array({n}).fill(0)); const look = () => player.level < 1e-3 ?"
        "done(player.position - start) : setTimeout(look, 1); look(); })"
    )
    studio.page.keyboard.press("Space")
    studio.eval(f"ondesStudio.player.setGains(Array({n}).fill(1))")
    # The analyser looks at the last 2048 samples, which take 93 ms by themselves.
    assert seconds < 0.1 + 2048 / SR


def test_a_selection_is_repeated(studio):
    page = studio.page
    studio.select(2.0, 2.6)
    page.click("#loop")
    page.click("#play")
    positions = []
    end = time.monotonic() + 1.8
    while time.monotonic() < end:
        positions.append(studio.eval("ondesStudio.player.position"))
    page.click("#play")
    page.click("#loop")
    chosen = studio.eval("ondesStudio.timeline.selection")
    assert min(positions) >= chosen["start"] - 0.01
    assert max(positions) <= chosen["end"] + 0.01
    assert (np.diff(positions) < -0.3).sum() >= 1
    page.keyboard.press("Escape")
    assert studio.eval("ondesStudio.timeline.selection") is None


@pytest.mark.parametrize(("height", "is_box"), [(8, False), (14, True)])
def test_a_low_drag_is_a_box_unless_the_hand_only_trembled(studio, height, is_box):
    box = studio.page.locator("#view").bounding_box()
    studio.page.mouse.move(box["x"] + 200, box["y"] + 100)
    studio.page.mouse.down()
    studio.page.mouse.move(box["x"] + 300, box["y"] + 100 + height, steps=4)
    studio.page.mouse.up()
    assert (studio.eval("ondesStudio.timeline.selection.low") is not None) == is_box
    studio.page.keyboard.press("Escape")


def test_zoom_by_keys(studio):
    studio.page.focus("#view")
    studio.page.keyboard.press("+")
    studio.page.keyboard.press("+")
    shown = studio.eval("ondesStudio.timeline.range")
    assert shown["end"] - shown["start"] == pytest.approx(1.5, rel=0.01)
    studio.page.keyboard.press("Shift+Z")
    shown = studio.eval("ondesStudio.timeline.range")
    assert shown["end"] - shown["start"] == pytest.approx(6, rel=0.01)


def test_groups_by_keys_drags_names_merge_split_and_undo(studio):
    page, before = studio.page, studio.groups()
    first, second, *_ = before
    moved = min(before[first])
    _card(studio, moved).focus()
    page.keyboard.press("2")
    studio.wait(
        f"document.querySelectorAll('.lane')[1].querySelector('[data-component=\"{moved}\"]')"
    )
    assert moved in studio.groups()[second]

    _card(studio, moved).drag_to(page.locator(".lane").first)
    studio.wait(
        f"document.querySelectorAll('.lane')[0].querySelector('[data-component=\"{moved}\"]')"
    )
    assert studio.groups()[first] == before[first]

    name = page.locator(".lane input.name").first
    name.fill(HOSTILE)
    name.press("Enter")
    studio.wait("document.querySelector('.lane input.name').value.startsWith('<img')")
    studio.wait("document.querySelector('.lane').ariaLabel.includes('<img')")
    assert HOSTILE in studio.groups()
    assert page.locator(".lane img").count() == 0
    assert page.title() != "1"

    n_lanes = len(before)
    page.locator(".lane").first.locator("summary").click()
    page.locator(".lane").first.locator("select").select_option(index=1)
    studio.wait(f"document.querySelectorAll('.lane').length === {n_lanes}")
    assert studio.groups()[HOSTILE] == before[first] | before[second]
    page.locator(".lane").first.locator("summary").click()
    page.locator(".lane").first.get_by_role("button", name="Split", exact=True).click()
    studio.wait(f"document.querySelectorAll('.lane').length === {n_lanes + 1}")
    halves = list(studio.groups().values())[:2]
    assert halves[0] | halves[1] == before[first] | before[second]
    assert not halves[0] & halves[1]

    for _ in range(5):
        page.keyboard.press("Control+z")
        time.sleep(0.1)
    studio.wait("document.querySelectorAll('.lane.proposed').length === 4")
    assert studio.groups() == before
    page.keyboard.press("Control+Shift+z")
    studio.wait("document.querySelectorAll('.lane.proposed').length < 4")
    page.keyboard.press("Control+z")
    studio.wait("document.querySelectorAll('.lane.proposed').length === 4")

    _card(studio, studio.state["components"]["items"][-1]["index"]).focus()
    page.keyboard.press("n")
    page.wait_for_selector(".lane .tag.warn:has-text('almost silent')")
    page.click("#undo")
    studio.wait("document.querySelectorAll('.lane.proposed').length === 4")


def _boxes(page, selector):
    """Where the elements that are shown lie."""
    boxes = (each.bounding_box() for each in page.locator(selector).all())
    return [box for box in boxes if box]


def test_it_fits_a_phone_and_everything_has_a_name(studio):
    page = studio.page
    page.set_viewport_size({"width": 390, "height": 844})
    for tab in ("speech", "field", "music"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#panel-{tab}", state="visible")
        assert studio.eval("document.documentElement.scrollWidth") <= 390
        nameless = studio.eval(
            "[...document.querySelectorAll('button, input, select, [role=slider]')]"
            ".filter((each) => !each.hidden && !each.ariaLabel)"
            ".filter((each) => !each.textContent.trim() && !each.labels?.length)"
            ".map((each) => each.outerHTML)"
        )
        assert nameless == []
        # What belongs to the selection takes as many rows before a drag as after it.
        for span in ((0.0, 0.0), (1.0, 2.0)):
            studio.eval("ondesStudio.timeline.select({}, {})".format(*span))
            ends = {round(each["y"] + each["height"] / 2) for each in _boxes(page, "#selected > *")}
            assert len(ends) == (2 if tab == "field" else 1)
        page.keyboard.press("Escape")
    head, strip = (_boxes(page, f".lane .head{inside}")[0] for inside in ("", " .strip"))
    assert strip["y"] + strip["height"] >= head["y"] + head["height"] - 4
    _card(studio, 0).click(position={"x": 20, "y": 10})
    moves = page.locator(".lane").nth(1).get_by_role("button", name="Move selected here")
    moves.click()
    studio.wait("document.querySelectorAll('.lane')[1].querySelector('[data-component=\"0\"]')")
    page.click("#undo")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_box_chooses_the_sounds_that_make_it_up(studio, song, tmp_path):
    page, n_lanes = studio.page, studio.page.locator(".lane").count()
    assert page.locator("#choose-sounds").is_disabled()
    box = page.locator("#view").bounding_box()
    corners = [(0.2, 0.55), (0.5, 0.95)]  # of the picture: 1.2 to 3 s, low frequencies
    x, y = zip(
        *((box["x"] + a * box["width"], box["y"] + b * box["height"]) for a, b in corners),
        strict=True,
    )
    page.mouse.move(x[0], y[0])
    page.mouse.down()
    page.mouse.move(x[1], y[1], steps=4)
    page.mouse.up()
    chosen = studio.eval("ondesStudio.timeline.selection")
    assert (chosen["start"], chosen["end"]) == pytest.approx((1.2, 3.0), abs=0.02)
    octaves = np.log2(SR / 2 / 40)
    low, high = (40 * 2 ** (octaves * (1 - b)) for b in (0.95, 0.55))
    assert (chosen["low"], chosen["high"]) == pytest.approx((low, high), rel=0.05)
    page.click("#choose-sounds")
    page.wait_for_selector(".card[aria-current=true]")
    cards = page.locator(".card[aria-current=true]")
    found = {int(cards.nth(n).get_attribute("data-component")) for n in range(cards.count())}
    # The same from the sound of every component by itself.
    with urllib.request.urlopen(f"{studio.address}save") as response:
        (tmp_path / "work.ondes").write_bytes(response.read())
    dictionary = ondes.load(tmp_path / "work.ondes")
    parts = {str(n): [n] for n in range(len(dictionary.components))}
    mixture, _ = soundfile.read(song)
    stems = separate(mixture, Sources.from_components(dictionary, parts), sr=SR, spatial="none")
    hertz = np.arange(1025) * SR / 2048
    rows, bins = slice(int(1.2 * SR / 512), int(3 * SR / 512)), (hertz > low) & (hertz < high)
    energy = [ondes.Stft(2048, 512).power(stems[n])[rows][:, bins].sum() for n in parts]
    most = energy >= 0.25 * np.sum(energy)
    assert set(np.flatnonzero(most)) <= found
    assert np.sum(energy, where=np.isin(range(len(energy)), list(found))) > 0.7 * np.sum(energy)
    # They become a group wherever the focus is, here on no element.
    assert page.locator("#new-group").inner_text() == f"New group of {len(found)}"
    page.keyboard.press("n")
    studio.wait(f"document.querySelectorAll('.lane').length === {n_lanes + 1}")
    assert list(studio.groups().values())[-1] == found
    page.keyboard.type("low")
    page.keyboard.press("Enter")
    studio.wait("ondesStudio.store.state.project.groups.at(-1).name === 'low'")
    page.click("#undo")
    page.click("#undo")
    studio.wait(f"document.querySelectorAll('.lane').length === {n_lanes}")
    page.click("#choose-sounds")
    page.wait_for_selector(".card[aria-current=true]")
    page.keyboard.press("Escape")
    assert page.locator(".card[aria-current=true]").count() == 0
    assert studio.eval("ondesStudio.timeline.selection") is None


def test_a_sound_plays_alone_and_solo_dims_the_others(studio):
    page = studio.page
    loudest, other = (studio.state["components"]["items"][n]["index"] for n in (0, 1))
    for index in (loudest, other):
        _card(studio, index).locator("[data-hear]").click()
        studio.wait("ondesStudio.player.isPlaying && ondesStudio.player.level > 1e-3")
        assert page.locator("[data-hear][aria-pressed=true]").count() == 1
        assert studio.state["mix"]["soloed"] == []
    _card(studio, other).locator("[data-hear]").click()
    studio.wait("!ondesStudio.player.isPlaying")
    assert page.locator("[data-hear][aria-pressed=true]").count() == 0
    n_cards = page.locator(".card").count()
    assert page.locator(".card.unheard").count() == 0
    _card(studio, other).locator("[data-solo]").click()
    _card(studio, loudest).locator("[data-mute]").click()
    assert page.locator(".card.unheard").count() == n_cards - 1
    page.click("#hear-all")
    assert page.locator(".card.unheard").count() == 0
    assert page.locator("#hear-all").is_disabled()
    studio.wait("ondesStudio.store.mix.soloed.size === 0")


def test_nothing_moves_when_a_card_is_selected_or_something_is_computed(studio):
    page = studio.page
    places = "[...document.querySelectorAll('.card, #view, .lane')].map((each) => each.offsetTop)"
    before = studio.eval(places)
    _card(studio, 0).click(position={"x": 20, "y": 10})
    assert studio.eval(places) == before
    page.locator("details.again summary").click()
    before = studio.eval(places)
    page.get_by_role("button", name="Propose groups again").click()
    page.wait_for_selector("#job:not([hidden])")
    assert studio.eval("document.getElementById('view').offsetTop") == before[0]
    studio.idle()
    page.locator("details.again summary").click()
    page.click("#undo")
    studio.wait("document.querySelectorAll('.lane.proposed').length === 4")


def test_axe_finds_no_serious_fault(browser, studio):
    """In the light and the dark style, on a desk and a phone, on every page and in a dialog.

    Colours are those of the controls at rest, under the mouse, pressed, and where one sound plays
    alone. None may be on its way to another one, which is a moment without contrast.
    """
    if not AXE.is_file():
        pytest.skip(f"no {AXE}: make peers fetches axe-core from npm")
    context = browser.new_context(bypass_csp=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(studio.address)
    page.wait_for_selector(".card")
    page.add_script_tag(path=AXE)
    tools = context.new_cdp_session(page)
    tools.send("DOM.enable")
    tools.send("CSS.enable")
    faults = []

    def look(where):
        lasting = page.evaluate(LASTING_CHANGES)
        assert lasting == []
        root = tools.send("DOM.getDocument")["root"]["nodeId"]
        controls = {"nodeId": root, "selector": "button, select, summary, input, .card"}
        nodes = tools.send("DOM.querySelectorAll", controls)["nodeIds"]
        for state in ([], ["hover"], ["hover", "active"]):
            for node in nodes:
                tools.send("CSS.forcePseudoState", {"nodeId": node, "forcedPseudoClasses": state})
            rules = "{ type: 'rule', values: ['color-contrast'] }" if state else "undefined"
            options = f"{{ resultTypes: ['violations'], runOnly: {rules} }}"
            found = page.evaluate(f"axe.run(document, {options})")["violations"]
            faults.extend(
                (where, state, each["id"], node["target"], node["failureSummary"])
                for each in found
                if each["impact"] in ("serious", "critical")
                for node in each["nodes"]
            )
        for node in nodes:
            tools.send("CSS.forcePseudoState", {"nodeId": node, "forcedPseudoClasses": []})

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for tab in ("speech", "field", "music"):
            page.click(f"#tab-{tab}")
            page.wait_for_selector(f"#panel-{tab}", state="visible")
            look((scheme, tab))
        page.locator(".card [data-solo]").first.click()
        look((scheme, "solo"))
        page.click("#hear-all")
        page.click("#named")
        look((scheme, "stems"))
        page.click("#numbered")
        page.locator("details.menu summary").first.click()
        look((scheme, "menu"))
        page.keyboard.press("Control+e")
        look((scheme, "dialog"))
        page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 844})
    look("phone")
    context.close()
    assert faults == []


def test_a_screen_shows_several_groups_of_a_real_song(browser):
    if not SONG.is_file():
        pytest.skip(f"no {SONG}: set ONDES_RECORDINGS to a folder of recordings")
    with served(SONG) as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector(".lane.proposed")
        studio.idle()
        assert studio.eval("innerHeight") == 900
        bottom = page.locator("#transport").bounding_box()["y"]
        lanes = [box.bounding_box() for box in page.locator(".lane").all()]
        heads = [box.bounding_box() for box in page.locator(".lane .head").all()]
        assert sum(box["y"] + box["height"] <= bottom for box in lanes) >= 2
        assert sum(box["y"] + box["height"] <= bottom for box in heads) >= 3
        assert studio.faults == []
        page.close()


def test_split_further_finds_more_inside_a_group(studio):
    before = studio.groups()
    first = next(iter(before))
    n_before = len(studio.state["components"]["items"])
    studio.page.locator(".lane").first.locator("summary").click()
    studio.page.locator(".lane").first.get_by_role("button", name="Split further").click()
    studio.wait(f"document.querySelectorAll('.card').length > {n_before}")
    studio.idle()
    after = studio.groups()
    assert len(after[first]) == 2 * len(before[first])
    assert {name: after[name] for name in list(before)[1:]} == dict(list(before.items())[1:])
    studio.page.click("#undo")
    studio.wait(f"document.querySelectorAll('.card').length === {n_before}")
    assert studio.groups() == before


def test_exported_stems_sum_to_the_song(studio, song, tmp_path):
    page = studio.page
    page.keyboard.press("Control+e")
    page.locator("#dialog input[type=checkbox]").nth(1).uncheck()
    with page.expect_download() as waiting:
        page.click("#export-stems")
    assert waiting.value.suggested_filename == "band - groups.zip"
    page.wait_for_selector("#messages p:has-text('Exported')")
    waiting.value.save_as(tmp_path / "stems.zip")
    with zipfile.ZipFile(tmp_path / "stems.zip") as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    assert len(names) == len(studio.groups())  # one group is in the rest
    assert names[-1] == "band - rest.wav"
    total = sum(soundfile.read(tmp_path / name)[0] for name in names)
    mixture, _ = soundfile.read(song)
    assert total.shape == mixture.shape
    assert np.abs(total - mixture).max() < 1e-5


def test_stems_with_names_are_played_and_sum_to_the_song(studio, song, tmp_path):
    page = studio.page
    page.click("#named")
    assert page.locator("#separator option").count() >= 2
    page.click("#separate")
    page.wait_for_selector(".stem")
    studio.idle()
    names = page.locator(".stem strong").all_inner_texts()
    assert names == ["speech", "music", "effects"]
    items = studio.state["stems"]["items"]
    assert sum(item["share"] for item in items) == pytest.approx(1, abs=1e-5)
    heard = ondes.separate(soundfile.read(song)[0], ondes.load("talk"), sr=SR)
    energies = np.array([np.square(heard[name]).sum() for name in names])
    np.testing.assert_allclose(
        [item["share"] for item in items], energies / energies.sum(), atol=0.01
    )
    with studio.playing():
        studio.wait("ondesStudio.player.position > 0.3 && ondesStudio.player.level > 0.02")
        mutes = page.locator(".stem [data-mute]")
        for n in range(3):
            mutes.nth(n).click()
        studio.wait("ondesStudio.player.level < 1e-4")
        assert page.locator(".stem.unheard").count() == 3
        page.click("#hear-all")
        page.locator(".stem [data-solo]").nth(2).click()
        studio.wait("ondesStudio.player.level < 0.01")
        page.click("#numbered")
        studio.wait("ondesStudio.player.level > 0.02")  # a solo of a stem silences no sound
        page.click("#named")
        page.locator(".stem [data-solo]").nth(2).click()
        page.locator(".stem [data-solo]").nth(1).click()
        page.locator("[data-gain='s1']").fill("-20")
    mixture, _ = soundfile.read(song)
    page.keyboard.press("Control+e")
    with page.expect_download() as waiting:
        page.click("#export-mix")
    waiting.value.save_as(tmp_path / "mix.wav")
    np.testing.assert_allclose(
        soundfile.read(tmp_path / "mix.wav")[0], 0.1 * heard["music"], atol=1e-4
    )
    page.keyboard.press("Control+e")
    with page.expect_download() as waiting:
        page.click("#export-stems")
    assert waiting.value.suggested_filename == "band - stems.zip"
    waiting.value.save_as(tmp_path / "stems.zip")
    with zipfile.ZipFile(tmp_path / "stems.zip") as archive:
        archive.extractall(tmp_path)
        assert archive.namelist() == [f"band - {name}.wav" for name in names]
    total = sum(soundfile.read(tmp_path / f"band - {name}.wav")[0] for name in names)
    np.testing.assert_allclose(total, mixture, atol=1e-5)
    page.locator(".stem [data-solo]").nth(1).click()
    page.locator("[data-gain='s1']").fill("0")
    with urllib.request.urlopen(f"{studio.address}save") as response:
        (tmp_path / "work.ondes").write_bytes(response.read())
    assert read_work(tmp_path / "work.ondes").stems == "talk"
    page.click("#numbered")
    page.click("#undo")
    studio.wait("ondesStudio.store.state.stems === null")


def test_saved_work_reopens_as_it_was(studio, browser, song, tmp_path):
    page = studio.page
    page.locator(".lane input.name").first.fill("Bass ø <b>")
    page.locator(".lane input.name").first.press("Enter")
    page.locator(".lane .head [data-mute]").nth(1).click()
    page.locator(".lane .head [data-gain]").nth(2).fill("-7.5")
    studio.wait("document.querySelector('.lane input.name').value.startsWith('Bass')")
    studio.wait("document.getElementById('saved').textContent === 'not saved'")
    page.click("#close")
    page.get_by_role("button", name="Cancel").click()
    with page.expect_download() as waiting:
        page.keyboard.press("Control+s")
    studio.wait("document.getElementById('saved').textContent === 'saved'")
    page.wait_for_selector("#messages p:has-text('band.ondes is in your downloads')")
    saved = tmp_path / "mine.ondes"
    waiting.value.save_as(saved)
    expected = studio.state
    for named in ((saved,), ()):
        with served(*named) as address:
            again = Studio(browser, address)
            if not named:
                again.page.set_input_files("#files", [saved])
                again.page.wait_for_selector("#messages p:has-text('Open band.wav, too')")
                again.idle()
                again.page.set_input_files("#files", [song])
            again.page.wait_for_selector(".card")
            again.idle()
            state = again.state
            assert state["project"]["groups"] == expected["project"]["groups"]
            assert state["mix"] == expected["mix"]
            shares = [[item["share"] for item in each["components"]["items"]]
                      for each in (state, expected)]  # fmt: skip
            np.testing.assert_allclose(*shares, rtol=1e-3)
            assert again.page.locator("[data-mute='g2'][aria-pressed=true]").count() == 1
            assert again.page.locator("[data-gain='g3']").input_value() == "-7.5"
            assert again.faults == []
            again.page.close()


def test_a_dictionary_alone_waits_for_a_recording(browser, song, tmp_path):
    ondes.learn(song, 4, n_passes=1).save(tmp_path / "speech.ondes")
    with served(tmp_path / "speech.ondes") as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector("#messages p:has-text('speech.ondes is ready: open a recording')")
        studio.idle()
        page.set_input_files("#files", [song])
        page.wait_for_selector(".card")
        studio.idle()
        assert page.locator(".card").count() == 4
        assert page.locator("#panel-music").is_visible()
        assert studio.faults == []
        page.close()


# How bright the first sixth of the picture is, where only noise is heard.
QUIET_CORNER = (
    "(() => { const c = document.getElementById('spectrogram');"
    "const d = c.getContext('2d').getImageData(0, 0, c.width / 6, c.height).data;"
    "let sum = 0; for (let i = 0; i < d.length; i += 4) sum += d[i] + d[i + 1] + d[i + 2];"
    "return sum / d.length; })()"
)


def _write_talk(path):
    """Syllables after two seconds of nothing but noise."""
    rng = np.random.default_rng(0)
    voice = np.concatenate([np.zeros(2 * 16000), 2 * speech_like(4, 0)])
    noisy = voice + 0.005 * rng.standard_normal(len(voice))
    soundfile.write(path, noisy, 16000, subtype="FLOAT")
    return noisy


@pytest.mark.parametrize("cleaner", ["denoise", "talk", "the noise of a pause"])
def test_a_cleaned_talk_is_saved_and_reopens_cleaned_on_its_page(browser, tmp_path, cleaner):
    _write_talk(tmp_path / "talk.wav")
    with served(tmp_path / "talk.wav") as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector("#clean")
        studio.idle()
        page.select_option("#model", label=cleaner)
        page.click("#clean")
        page.wait_for_selector("#clean:has-text('Clean again')")
        studio.idle()
        assert page.locator("#saved").inner_text() == "not saved"
        page.click("#close")
        page.get_by_role("button", name="Cancel").click()
        with page.expect_download() as waiting:
            page.keyboard.press("Control+s")
        studio.wait("document.getElementById('saved').textContent === 'saved'")
        waiting.value.save_as(tmp_path / "talk.ondes")
        page.close()
    with served(tmp_path / "talk.ondes") as address:
        again = Studio(browser, address)
        again.page.wait_for_selector("#clean:has-text('Clean again')")
        again.idle()
        assert again.eval("document.documentElement.dataset.tab") == "speech"
        assert again.state["cleaner"]["label"] == cleaner
        assert again.page.locator("#saved").inner_text() == "saved"
        assert studio.faults == again.faults == []
        again.page.close()


def test_speech_without_its_noise(browser, tmp_path):
    noisy = _write_talk(tmp_path / "talk.wav")
    with served(tmp_path / "talk.wav") as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector("#timeline:not([hidden])")
        studio.wait("document.documentElement.dataset.tab === 'speech'")
        studio.idle()
        page.click("#clean")
        page.wait_for_selector("#clean:has-text('Clean again')")
        studio.idle()
        assert studio.state["cleaner"]["label"] == "denoise"
        page.select_option("#model", "")
        page.click("#clean")
        studio.wait("ondesStudio.store.state.cleaner.model === 1")
        studio.idle()
        assert studio.state["project"]["noise"]["end"] <= 2.01
        studio.select(0.1, 1.7)
        page.click("#is-noise")
        studio.wait("ondesStudio.store.state.project.noise.end > 1.6")
        studio.wait("ondesStudio.store.state.cleaner.model === 2")
        studio.idle()
        page.keyboard.press("Escape")
        levels, sounds = {}, {}
        for mode in ("before", "result", "noise"):
            page.click(f"#mode-{mode}")
            studio.eval("ondesStudio.player.seek(0.1)")
            page.keyboard.press("Space")
            studio.wait("ondesStudio.player.position > 0.3")
            sounds[mode] = studio.level()
            page.keyboard.press("Space")
            studio.drawn()
            levels[mode] = studio.eval(QUIET_CORNER)
        assert 0.003 < sounds["before"] < 0.01
        assert 0.003 < sounds["noise"] < 0.01
        assert sounds["result"] < 0.15 * sounds["before"]
        assert levels["result"] < 0.5 * levels["before"]
        assert levels["noise"] > 0.5 * levels["before"]
        page.click("#mode-result")
        page.locator("#amount").fill("20")
        page.keyboard.press("Control+e")
        with page.expect_download() as waiting:
            page.click("#export-clean")
        waiting.value.save_as(tmp_path / "clean.wav")
        clean, sr = soundfile.read(tmp_path / "clean.wav")
        assert (sr, clean.shape) == (16000, noisy.shape)
        reduced = np.std(clean[:24000]) / np.std(noisy[:24000])
        assert -21 < 20 * np.log10(reduced) < -12  # what is above the mean of the noise stays
        assert studio.faults == []
        page.close()


def _rain(rng, n, sr):
    """Hiss and drops."""
    hits = np.zeros(n)
    hits[rng.integers(0, n, 60 * n // sr)] = 1
    drop = rng.standard_normal(200) * np.exp(-np.arange(200) / 40)
    return 0.02 * rng.standard_normal(n) + 0.05 * np.convolve(hits, drop)[:n]


def _wind(rng, n, sr):
    """Low noise in gusts of 3 dB."""
    hertz = np.maximum(np.fft.rfftfreq(n, 1 / sr), 30)
    steps = np.arange(0, n / sr + 1, 0.7)
    gusts = np.interp(np.arange(n) / sr, steps, np.exp(rng.normal(0, 0.35, len(steps))))
    samples = gusts * np.fft.irfft(np.fft.rfft(rng.standard_normal(n)) / hertz**0.9, n)
    return 0.1 * samples / np.std(samples)


CALL_BAND = 2900.0, 3900.0


def _plant(folder, noise, planted, sr=16000):
    """Calls as loud as the noise in their own band, in one recording for each tuple of times."""
    rng, (low, high) = np.random.default_rng(0), CALL_BAND
    length = np.arange(int(0.4 * sr)) / sr
    call = np.sin(2 * np.pi * (3000 * length + 1000 * length**2)) * np.hanning(len(length))
    folder.mkdir()
    for hour, times in enumerate(planted):
        samples = noise(rng, int(max(times) + 3) * sr, sr)
        spectrum, hertz = np.fft.rfft(samples), np.fft.rfftfreq(len(samples), 1 / sr)
        in_band = np.fft.irfft(np.where((hertz > low) & (hertz < high), spectrum, 0))
        for at in times:
            samples[int(at * sr) :][: len(call)] += call * np.std(in_band) / np.std(call)
        soundfile.write(folder / f"SM4_20240131_0{hour}0000.wav", samples, sr, subtype="FLOAT")


def _precision_and_recall(table, planted):
    """Of the events in a table; a call that is met by an event is found."""
    found = [(row["file"], float(row["start"]), float(row["end"])) for row in table]
    calls = [(f"SM4_20240131_0{hour}0000.wav", at)
             for hour, times in enumerate(planted) for at in times]  # fmt: skip
    hits = np.array([[file == name and start < at + 0.4 and end > at for name, at in calls]
                     for file, start, end in found])  # fmt: skip
    return hits.any(axis=1).mean(), hits.any(axis=0).mean()


@pytest.mark.parametrize("noise", [_rain, _wind])
def test_most_planted_calls_are_found_and_little_else(browser, tmp_path, noise):
    rng = np.random.default_rng(1)
    planted = [np.arange(2, 56, 4) + rng.uniform(0, 2, 14) for _ in range(2)]
    _plant(tmp_path / "field", noise, planted)
    with served(tmp_path / "field") as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector("#events tr", state="attached")
        studio.idle()
        studio.select(planted[0][10], planted[0][10] + 0.4, CALL_BAND)
        page.fill("#sound-name", "frog")
        page.click("#learn-sound")
        studio.wait("document.getElementById('n-events').textContent.endsWith('of frog')")
        with page.expect_download() as waiting:
            page.click("#table-events")
        waiting.value.save_as(tmp_path / "events.csv")
        with (tmp_path / "events.csv").open(newline="") as file:
            precision, recall = _precision_and_recall(list(csv.DictReader(file)), planted)
        assert precision >= 0.9
        assert recall >= 0.9
        assert studio.faults == []
        page.close()


def test_calls_in_rain_become_events(browser, tmp_path):
    planted = ((2.0, 5.0, 9.3, 13.0, 17.5), (1.0, 6.5, 10.0, 12.7, 17.1))
    folder = tmp_path / "field"
    _plant(folder, _rain, planted)
    with served(folder) as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector(".card", state="attached")
        studio.idle()
        page.click("#tab-field")
        assert page.locator("#linear").get_attribute("aria-pressed") == "true"
        studio.select(2.0, 2.4, CALL_BAND)
        page.fill("#sound-name", "frog")
        page.click("#learn-sound")
        studio.wait("document.getElementById('event-row')?.value === 'frog'")
        studio.wait("document.getElementById('n-events').textContent.endsWith('of frog')")
        rows = page.locator("#events tr:has(button)")
        names = [f"SM4_20240131_0{hour}0000.wav" for hour in range(2)]
        assert page.locator("#events th").all_inner_texts() == names
        assert "2024-01-31 00:00:0" in rows.first.inner_text()
        assert "2024-01-31 01:00:17" in rows.last.inner_text()
        rows.last.get_by_role("button").click()
        studio.wait("ondesStudio.player.position > 35.7")
        studio.wait("ondesStudio.player.level > 0.01")
        page.keyboard.press("Space")
        assert page.locator("#novel-moments button").count() > 0
        page.fill("#every", "0.5")
        with page.expect_download() as waiting:
            page.click("#table-events")
        waiting.value.save_as(tmp_path / "events.csv")
        with (tmp_path / "events.csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        assert min(_precision_and_recall(table, planted)) >= 0.9
        shown = [rows.nth(n).locator("td").all_inner_texts()[2:] for n in range(rows.count())]
        assert shown == [
            [f"{float(row['end']) - float(row['start']):.2f} s",
             f"{float(row['level_db']):.2f} dB".replace("-", "−")] for row in table
        ]  # fmt: skip
        assert {row["source"] for row in table} == {"frog"}
        ((low, high),) = {(float(row["low_hz"]), float(row["high_hz"])) for row in table}
        assert 2700 < low < high < 4100
        assert page.locator("#event-band").inner_text() == f"Between {low:g} and {high:g} Hz"
        page.select_option("#table-format", "raven")
        with page.expect_download() as waiting:
            page.click("#table-events")
        assert waiting.value.suggested_filename == "SM4_20240131_000000 and 1 more - events.txt"
        waiting.value.save_as(tmp_path / "raven.txt")
        columns, *selections = (tmp_path / "raven.txt").read_text().splitlines()
        assert columns.startswith("Selection\tView\tChannel\tBegin Time (s)")
        assert len(selections) == len(table)
        assert float(selections[-1].split("\t")[3]) == pytest.approx(20 + float(table[-1]["start"]))
        page.select_option("#table-format", "csv")
        with page.expect_download() as waiting:
            page.click("#table-labels")
        waiting.value.save_as(tmp_path / "labels.zip")
        with zipfile.ZipFile(tmp_path / "labels.zip") as archive:
            texts = [archive.read(name).decode() for name in archive.namelist()]
        assert sum(text.count("frog") for text in texts) == len(table)
        page.keyboard.press("Shift+Z")
        studio.drawn()
        ruler = page.locator("#ruler").inner_text()
        assert "00:00:0" in ruler
        assert "01:00:" in ruler
        moments = page.locator("#novel-moments button").all_inner_texts()
        for at, name in (each.split("\n") for each in moments):
            assert re.match("0[01]:00:", at)
            assert name == f"SM4_20240131_{at[:2]}0000.wav"
        with page.expect_download() as waiting:
            page.click("#table-levels")
        waiting.value.save_as(tmp_path / "levels.csv")
        header, *lines = (tmp_path / "levels.csv").read_text().splitlines()
        assert header.startswith("file,start,end,time,source,level_db")
        n_rows = page.locator("#heat-names span").count()
        assert len(lines) == 2 * 40 * n_rows
        with page.expect_download() as waiting:
            page.keyboard.press("Control+s")
        assert waiting.value.suggested_filename == "SM4_20240131_000000 and 1 more.ondes"
        curve = (
            "[...document.getElementById('novelty-curve').getContext('2d')"
            ".getImageData(0, 59, 1, 1).data].slice(0, 3)"
        )
        light = studio.eval(curve)
        page.emulate_media(color_scheme="dark")
        studio.wait(f"{curve}.every((each, n) => each > {light}[n])")
        page.set_viewport_size({"width": 390, "height": 844})
        tops = [box["y"] for box in _boxes(page, "#novel-moments button")]
        assert len(set(tops)) == (len(tops) + 1) // 2
        assert studio.faults == []
        page.close()


def test_odd_files_get_one_sentence_and_the_server_lives(browser, song, tmp_path):
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.standard_normal(4000)
    soundfile.write(tmp_path / "one.wav", [0.5], SR)
    soundfile.write(tmp_path / "silent.wav", np.zeros(3 * SR), SR)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), SR)
    eight = 0.1 * rng.standard_normal((2 * SR, 8))
    soundfile.write(tmp_path / "eight.wav", eight, SR)
    soundfile.write(tmp_path / "fast.wav", 0.1 * rng.standard_normal(400_000), 192_000)
    hour = np.tile(np.sin(np.arange(8000)), 3600).astype(np.float32)
    soundfile.write(tmp_path / "hour.wav", hour, 8000, subtype="PCM_U8")
    (tmp_path / "cut.wav").write_bytes(song.read_bytes()[:100_000])
    (tmp_path / "notes.txt").write_text("no sound")
    (tmp_path / "noise.flac").write_bytes(noise.astype("<f4").tobytes())
    (tmp_path / "fake.ondes").write_bytes(b"PK\x03\x04" + bytes(100))
    (tmp_path / f"{HOSTILE.replace('/', '')}.wav").write_bytes(b"RIFF")
    failing = {
        "one.wav": "too short", "silent.wav": "silent", "empty.wav": "no samples",
        "cut.wav": "cut.wav", "notes.txt": "notes.txt", "noise.flac": "noise.flac",
        "fake.ondes": "fake.ondes", f"{HOSTILE}.wav": "<img",
    }  # fmt: skip
    with served() as address:
        studio = Studio(browser, address)
        page = studio.page
        for name, text in failing.items():
            page.set_input_files("#files", [tmp_path / name])
            message = page.wait_for_selector("#messages p.error")
            said = message.inner_text().removesuffix("×").strip()
            assert text in said
            assert said.endswith(".")
            assert said.count(". ") == 0
            assert page.locator("#messages img").count() == 0
            assert page.title() != "1"
            studio.idle()
            if studio.state["recordings"]:
                page.click("#close")
            page.wait_for_selector("#empty", state="visible")
            message.query_selector("button").click()
        for name in ("eight.wav", "fast.wav"):
            page.set_input_files("#files", [tmp_path / name])
            page.wait_for_selector(".card")
            studio.idle()
            page.keyboard.press("Space")
            studio.wait("ondesStudio.player.level > 0.005")
            page.keyboard.press("Space")
            page.click("#close")
            page.wait_for_selector("#empty", state="visible")
        page.set_input_files("#files", [tmp_path / "hour.wav"])
        page.wait_for_selector("#find-music", state="visible")
        assert "1:00:00" in page.locator("#facts").inner_text()
        studio.wait("document.getElementById('ruler').textContent.includes('30:00')")
        assert page.locator("#messages p.error").count() == 0
        assert studio.faults == []
        page.close()


def test_a_song_can_be_dropped_and_finding_can_be_cancelled(browser, tmp_path):
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "long.wav", 0.1 * rng.standard_normal((90 * SR, 2)), SR)
    with served() as address:
        studio = Studio(browser, address)
        page = studio.page
        assert page.locator("#empty").is_visible()
        page.set_input_files("#files", [tmp_path / "long.wav"])
        page.wait_for_selector("#job:not([hidden]) >> text=Finding sounds")
        page.click("#cancel")
        page.wait_for_selector("#messages p:has-text('Cancelled')")
        page.wait_for_selector("#find-music", state="visible")
        assert studio.state["job"]["state"] == "cancelled"
        assert studio.faults == []
        page.close()
