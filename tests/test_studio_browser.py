"""The studio in a real browser: by clicks, drags and keys, with sound."""

import contextlib
import csv
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile

import numpy as np
import pytest
import soundfile

from ondes.scene import make_scene

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

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

    @property
    def state(self):
        with urllib.request.urlopen(f"{self.address}state") as response:
            return json.load(response)

    def groups(self):
        return {
            group["name"]: set(group["components"]) for group in self.state["project"]["groups"]
        }

    def select(self, start, end):
        box = self.page.locator("#view").bounding_box()
        shown = self.eval("ondesStudio.timeline.range")
        scale = box["width"] / (shown["end"] - shown["start"])
        x = [box["x"] + (each - shown["start"]) * scale for each in (start, end)]
        self.page.mouse.move(x[0], box["y"] + 60)
        self.page.mouse.down()
        self.page.mouse.move(x[1], box["y"] + 70, steps=4)
        self.page.mouse.up()

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
    before, seen = None, studio.eval(pixels)
    while seen != before:  # until no more tiles come
        time.sleep(1)
        before, seen = seen, studio.eval(pixels)
    studio.page.locator(".card").first.hover()
    studio.wait(f"{pixels} < {0.8 * before}")
    studio.wait(f"{pixels} > {0.1 * before}")
    studio.page.mouse.move(0, 0)
    studio.wait(f"Math.abs({pixels} - {before}) < 1")


def test_it_sounds_and_mute_solo_and_gain_are_heard(studio):
    page = studio.page
    page.keyboard.press("Space")
    studio.wait("ondesStudio.player.contextState === 'running'")
    studio.wait("ondesStudio.player.position > 0.3")
    assert studio.level() > 0.02
    mutes = page.locator(".lane .head [data-mute]")
    for n in range(mutes.count()):
        mutes.nth(n).click()
    studio.wait("ondesStudio.player.level < 1e-4", 5)
    page.click("#original")
    studio.wait("ondesStudio.player.level > 0.02", 5)
    page.click("#original")
    studio.wait("ondesStudio.player.level < 1e-4", 5)
    mutes.first.click()
    studio.wait("ondesStudio.player.level > 1e-3", 5)
    gain = page.locator(".lane .head [data-gain]").first
    gain.fill("-40")
    studio.wait("ondesStudio.player.level < 3e-3", 5)
    gain.fill("0")
    for n in range(1, mutes.count()):
        mutes.nth(n).click()
    page.locator(".card [data-solo]").first.click()
    studio.wait("(() => { const g = ondesStudio.store.mix.soloed; return g.size === 1; })()", 5)
    page.locator(".card [data-solo]").first.click()
    page.keyboard.press("Space")


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
    page.locator(".lane").first.locator("select").select_option(index=1)
    studio.wait(f"document.querySelectorAll('.lane').length === {n_lanes}")
    assert studio.groups()[HOSTILE] == before[first] | before[second]
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
    _card(studio, 0).click(position={"x": 20, "y": 10})
    moves = page.locator(".lane").nth(1).get_by_role("button", name="Move selected here")
    moves.click()
    studio.wait("document.querySelectorAll('.lane')[1].querySelector('[data-component=\"0\"]')")
    page.click("#undo")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_split_further_finds_more_inside_a_group(studio):
    before = studio.groups()
    first = next(iter(before))
    n_before = len(studio.state["components"]["items"])
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


def test_saved_work_reopens_as_it_was(studio, browser, song, tmp_path):
    page = studio.page
    page.locator(".lane input.name").first.fill("Bass ø <b>")
    page.locator(".lane input.name").first.press("Enter")
    page.locator(".lane .head [data-mute]").nth(1).click()
    page.locator(".lane .head [data-gain]").nth(2).fill("-7.5")
    studio.wait("document.querySelector('.lane input.name').value.startsWith('Bass')")
    with page.expect_download() as waiting:
        page.keyboard.press("Control+s")
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


def test_speech_without_its_noise(browser, tmp_path):
    rng = np.random.default_rng(0)
    seconds = np.arange(6 * 16000) / 16000
    tones = sum(np.sin(2 * np.pi * 150 * k * seconds) / k for k in range(1, 12))
    voice = np.where(seconds > 2, 0.1 * tones * (np.sin(9 * seconds) > 0), 0)
    noisy = voice + 0.05 * rng.standard_normal(len(seconds))
    soundfile.write(tmp_path / "talk.wav", noisy, 16000, subtype="FLOAT")
    with served(tmp_path / "talk.wav") as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector("#timeline:not([hidden])")
        studio.idle()
        page.click("#tab-speech")
        studio.select(0.1, 1.7)
        page.click("#is-noise")
        page.wait_for_selector("#clean:has-text('Learn again')")
        studio.idle()
        studio.eval("ondesStudio.player.seek(0.1)")
        page.keyboard.press("Space")
        studio.wait("ondesStudio.player.position > 0.3")
        quiet = studio.level()
        page.keyboard.press("o")
        time.sleep(0.2)
        loud = studio.level()
        page.keyboard.press("o")
        page.keyboard.press("Space")
        assert 0.03 < loud < 0.1
        assert quiet < 0.15 * loud
        studio.select(2.5, 5.5)
        page.click("#is-voice")
        studio.wait("ondesStudio.store.state.cleaner?.has_voice")
        studio.idle()
        page.locator("#amount").fill("20")
        page.keyboard.press("Control+e")
        with page.expect_download() as waiting:
            page.click("#export-clean")
        waiting.value.save_as(tmp_path / "clean.wav")
        clean, sr = soundfile.read(tmp_path / "clean.wav")
        assert (sr, clean.shape) == (16000, noisy.shape)
        reduced = np.std(clean[:24000]) / np.std(noisy[:24000])
        assert 20 * np.log10(reduced) == pytest.approx(-20, abs=3)
        assert studio.faults == []
        page.close()


def test_field_recordings_become_events(browser, tmp_path):
    rng = np.random.default_rng(0)
    sr, planted = 16000, ((2.0, 5.0), (1.0, 6.5))
    folder = tmp_path / "field"
    folder.mkdir()
    length = np.arange(int(0.4 * sr)) / sr
    call = 0.2 * np.sin(2 * np.pi * (3000 * length + 4000 * length**2)) * np.hanning(len(length))
    for hour, times in enumerate(planted):
        samples = 0.003 * rng.standard_normal(8 * sr)
        for at in times:
            samples[int(at * sr) :][: len(call)] += call
        soundfile.write(folder / f"SM4_20240131_0{hour}0000.wav", samples, sr, subtype="FLOAT")
    with served(folder) as address:
        studio = Studio(browser, address)
        page = studio.page
        page.wait_for_selector(".card", state="attached")
        studio.idle()
        page.click("#tab-field")
        studio.select(1.9, 2.5)
        page.fill("#sound-name", "frog")
        page.click("#learn-sound")
        studio.wait("document.getElementById('event-row')?.value === 'frog'")
        studio.wait("document.getElementById('n-events').textContent === '4 events of frog'")
        rows = page.locator("#events tr")
        assert "2024-01-31 00:00:0" in rows.first.inner_text()
        assert "2024-01-31 01:00:0" in rows.last.inner_text()
        rows.nth(2).get_by_role("button").click()
        studio.wait("ondesStudio.player.position > 8.7")
        studio.wait("ondesStudio.player.level > 0.01")
        page.keyboard.press("Space")
        assert page.locator("#odd-moments button").count() > 0
        page.fill("#every", "0.1")
        with page.expect_download() as waiting:
            page.click("#table-events")
        waiting.value.save_as(tmp_path / "events.csv")
        with (tmp_path / "events.csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        begun = [float(row["start"]) for row in table]
        assert begun == pytest.approx([at for times in planted for at in times], abs=0.25)
        assert {row["source"] for row in table} == {"frog"}
        with page.expect_download() as waiting:
            page.click("#table-labels")
        waiting.value.save_as(tmp_path / "labels.zip")
        with zipfile.ZipFile(tmp_path / "labels.zip") as archive:
            texts = [archive.read(name).decode() for name in archive.namelist()]
        assert [text.count("frog") for text in texts] == [2, 2]
        with page.expect_download() as waiting:
            page.click("#table-levels")
        waiting.value.save_as(tmp_path / "levels.csv")
        header, *lines = (tmp_path / "levels.csv").read_text().splitlines()
        assert header.startswith("file,start,end,time,source,level_db")
        n_rows = sum(bool(members) for members in studio.groups().values())
        assert len(lines) in (2 * 80 * n_rows, 2 * 80 * (n_rows + 1))
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
        assert page.locator("#find-music").is_visible()
        assert studio.state["job"]["state"] == "cancelled"
        assert studio.faults == []
        page.close()
