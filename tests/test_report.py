"""The report: what it shows, that it is complete, and that it works in a real browser."""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import NEEDS_TORCH

from ondes import atomic_file
from ondes.dictionary import Dictionary
from ondes.errors import DeviceError, FileError
from ondes.history import TrainingHistory
from ondes.nmf.estimator import OnlineNMF
from ondes.report import (
    ReportContent,
    Source,
    build_report,
    describe_dictionaries,
    describe_excerpt,
    page,
    read_excerpt,
    render,
    write_report,
)
from ondes.separation import Sources
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
pytest.importorskip("jinja2", reason="the extra 'report' is not installed")

SR, N_FFT, SECONDS = 8000, 256, 6.0
HOSTILE = """<script>window.hacked = 1</script>"'><img src=x onerror="window.hacked = 1">"""
LONG_WORD = "a_file_name_without_any_blank_" * 8


def make_content(**changes: Any) -> ReportContent:
    """A tone of 1 kHz in the first half, noise in the second."""
    n = round(SR * SECONDS)
    t = np.arange(n) / SR
    tone = (0.5 * np.sin(2 * np.pi * 1000 * t) * (t < SECONDS / 2)).astype(np.float32)
    noise = (0.1 * np.random.default_rng(0).standard_normal(n) * (t >= SECONDS / 2)).astype(
        np.float32
    )
    stft = Stft(N_FFT)
    frames = [stft.power(x) for x in (tone, noise)]
    dictionary = np.array([f.sum(axis=0) / f.sum() for f in frames])
    content = ReportContent(
        title="A tone & some noise",
        sr=SR,
        hop_length=N_FFT // 2,
        n_fft=N_FFT,
        mixture=tone + noise,
        sources=(Source("Tone", tone, 12.34, (0,)), Source("Noise", noise, None, (1,))),
        dictionary=dictionary,
        activations=np.stack([f.sum(axis=1) for f in frames], axis=1),
        component_samples=(tone, noise),
        curves=(("music", ((100, 3.0), (1000, 1.5), (10_000, 0.75))),),
        numbers=(("Divergence per bin", "0.750"), ("Speed", "241 × real time")),
        settings=(("n_components", "2"), ("recording", LONG_WORD)),
        excerpt="Shown: 0:00 to 0:06 of 3:12:45",
    )
    return replace(content, **changes)


class Page(HTMLParser):
    """The elements of a page, as (tag, attributes), and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.fixture(scope="module")
def html() -> str:
    return render(make_content())


@pytest.fixture(scope="module")
def parsed(html: str) -> Page:
    return Page(html)


# ---- what it shows ------------------------------------------------------------------------------


def test_shows_numbers_sources_components_settings_in_this_order(parsed: Page) -> None:
    words = (
        "Numbers",
        "0.750",
        "SI-SDR 12.3 dB",
        "Component 0",
        "n_components",
        "Written by ondes",
    )
    # "Component 0" is also a choice of the player, which comes first.
    main = parsed.text[parsed.text.index("Numbers") :]
    places = [main.index(word) for word in words]
    assert places == sorted(places)
    assert "Shown: 0:00 to 0:06 of 3:12:45" in parsed.text


def test_each_track_has_a_labelled_player(parsed: Page) -> None:
    labels = [audio["aria-label"] for audio in parsed.all("audio")]
    assert labels == ["Mixture", "Tone", "Noise", "Component 0", "Component 1"]
    assert all("aria-label" in button or "id" in button for button in parsed.all("button"))


def test_pictures_have_descriptions(parsed: Page) -> None:
    alternatives = [image["alt"] for image in parsed.all("img")]
    alternatives += [image["aria-label"] for image in parsed.all("svg")]
    assert len(set(alternatives)) == len(alternatives) == 3 + 1 + 2 * 2 + 1
    about = {text.split(":")[0].split(",")[0]: text for text in alternatives}
    assert re.search(r"from 9\d\d Hz to 1.0 kHz", about["Spectrogram of Tone"])
    assert "strongest at 1.0 kHz" in about["Spectrum of component 0"]
    assert "for 50% of the time" in about["Activation of component 1"]
    assert "3 after 100 frames to 0.75 after 10,000 frames" in about["Learning curve of music"]


def test_headings_go_down_one_level_at_a_time(parsed: Page) -> None:
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_ids_are_unique_and_references_resolve(parsed: Page) -> None:
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes in parsed.elements:
        assert attributes.get("aria-labelledby", ids[0]) in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_needs_no_other_file(html: str, parsed: Page) -> None:
    assert "//" not in re.sub(r"base64,[^\"]*|// .*", "", html)
    for _, attributes in parsed.elements:
        for name in ("src", "href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("data:", "#"))
    assert len(parsed.all("main")) == len(parsed.all("header")) == len(parsed.all("footer")) == 1


def test_names_cannot_become_markup() -> None:
    content = make_content(
        title=HOSTILE,
        excerpt=HOSTILE,
        numbers=((HOSTILE, HOSTILE),),
        settings=((HOSTILE, HOSTILE),),
        sources=(Source(HOSTILE, make_content().mixture, None, (0, 1)),),
    )
    hostile = Page(render(content))
    assert len(hostile.all("script")) == 1
    assert not [attributes for _, attributes in hostile.elements if "onerror" in attributes]
    assert hostile.text.count(HOSTILE) >= 7


def test_names_of_files_need_not_be_utf8(tmp_path: Path) -> None:
    path = write_report(tmp_path / "r.html", make_content(title="caf\udce9.wav"))
    assert "caf?.wav" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "changes",
    [
        {"component_samples": (), "curves": (), "numbers": (), "settings": (), "excerpt": None},
        {"sources": ()},
        {"curves": (("short", ((100, 1.0),)),)},
        {"curves": (("odd", ((0, 2.0), (10, np.inf), (100, 1.0), (100, 0.9))),)},
        {"activations": np.zeros((1, 2)), "dictionary": np.zeros((2, N_FFT // 2 + 1))},
        {"dictionary": np.ones((0, N_FFT // 2 + 1)), "activations": np.ones((7, 0)), "sources": (),
         "component_samples": ()},
    ],
    ids=["bare", "no sources", "one point", "odd points", "silent model", "no components"],
)  # fmt: skip
def test_shows_what_there_is(changes: dict[str, Any]) -> None:
    sparse = Page(render(make_content(**changes)))
    assert "nan" not in "".join(str(attributes) for attributes in sparse.all("path", "span"))
    assert "NaN" not in sparse.text


@pytest.mark.parametrize("sr", [4000, 22050, 37800, 96000])
@pytest.mark.parametrize("shape", [(1,), (5000,), (5000, 2), (5000, 6)])
def test_any_rate_channels_and_length(sr: int, shape: tuple[int, ...]) -> None:
    mixture = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    content = make_content(sr=sr, mixture=mixture, sources=(), component_samples=())
    sound = decode_sounds(render(content))[0]
    assert len(sound.samples) / sound.sr == pytest.approx(len(mixture) / sr, abs=2 / sr)
    assert sound.samples.shape[1] == (2 if shape[1:] == (2,) else 1)


def test_silence() -> None:
    silence = np.zeros(4000, np.float32)
    content = make_content(
        mixture=silence, sources=(Source("Nothing", silence),), component_samples=()
    )
    assert render(content).count("silence.") == 2


class Sound:
    def __init__(self, uri: str) -> None:
        file = io.BytesIO(base64.b64decode(uri.split(",")[1]))
        self.samples, self.sr = soundfile.read(file, always_2d=True)


def decode_sounds(html: str) -> list[Sound]:
    return [Sound(audio["src"]) for audio in Page(html).all("audio")]


def test_sounds_keep_their_levels_and_are_not_clipped() -> None:
    content = make_content()
    loud = replace(
        content,
        mixture=4 * content.mixture,
        sources=tuple(replace(s, samples=4 * s.samples) for s in content.sources),
    )
    mixture, tone, noise, *_ = decode_sounds(render(loud))
    quieter = np.abs(loud.mixture).max()
    for sound, original in ((mixture, loud.mixture), (tone, 4 * content.sources[0].samples),
                            (noise, 4 * content.sources[1].samples)):  # fmt: skip
        assert np.std(sound.samples) == pytest.approx(np.std(original) / quieter, rel=0.05)


def test_sounds_without_mp3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "available_formats", lambda: {"FLAC": ""})
    html = render(make_content())
    assert html.count("data:audio/flac") == 5
    assert {len(sound.samples) for sound in decode_sounds(html)} == {round(SR * SECONDS)}


def decode_image(uri: str) -> np.ndarray[Any, Any]:
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as image:
        return np.asarray(image.convert("RGB"), dtype=float).sum(axis=2)


def test_spectrogram_puts_sound_where_the_axes_say(html: str, parsed: Page) -> None:
    tone = decode_image(parsed.all("img")[1]["src"])
    n_rows, n_columns = tone.shape
    assert tone[:, : n_columns // 2 - 2].mean() > 4 * tone[:, n_columns // 2 + 2 :].mean()
    height = 100 * (1 - (tone.sum(axis=1).argmax() + 0.5) / n_rows)
    tick = re.search(r"--at: ([\d.]+)%\">1</span>", html)
    assert tick
    assert height == pytest.approx(float(tick[1]), abs=2)


# ---- what it rejects ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mixture": np.zeros(0, np.float32)}, "at least one sample"),
        ({"n_fft": 512}, "does not fit n_fft = 512"),
        ({"activations": np.ones((9, 3))}, "do not fit 2 components"),
        ({"component_samples": (np.zeros(9, np.float32),)}, "Samples of 1 components"),
        ({"sources": (Source("X", np.zeros(9, np.float32)),)}, "X has 9 samples"),
        ({"sources": (Source("X", make_content().mixture, None, (2,)),)}, "beyond the 2"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_content(**changes)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'ondes[report]'")):
        render(make_content())


def test_import_is_light() -> None:
    check = "import sys, ondes.report; sys.exit(bool({'matplotlib', 'jinja2'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_excerpt_in_words() -> None:
    assert describe_excerpt(3600, 3660, 36000) == "Shown: 1:00:00 to 1:01:00 of 10:00:00"
    assert describe_excerpt(0, 60, 60) is None


# ---- building ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> Sources:
    rows = np.random.default_rng(0).dirichlet(np.ones(33), size=4)
    return Sources(rows, np.array([0, 0, 1, 1]), ("low", "high"), AudioSettings(SR, Stft(64, 16)))


def stereo_noise(n: int = 2000) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal((n, 2)).astype(np.float32)


def test_building_separates_and_encodes_all_components(toy: Sources) -> None:
    mixture = stereo_noise()
    content = build_report(mixture, toy, title="noise", scores={"low": 3.0})
    assert [(s.name, s.score, s.components) for s in content.sources] == [
        ("low", 3.0, (0, 1)),
        ("high", None, (2, 3)),
    ]
    np.testing.assert_allclose(sum(s.samples for s in content.sources), mixture, atol=1e-5)
    components = np.sum(content.component_samples, axis=0)
    np.testing.assert_allclose(components, mixture.mean(axis=1), atol=1e-5)
    estimator = OnlineNMF(4, init=toy.dictionary).initialise(toy.stft.power(mixture))
    expected = estimator.transform(toy.stft.power(mixture))
    np.testing.assert_allclose(content.activations, expected, rtol=1e-3, atol=1e-6)


def test_channels_in_opposite_phase_are_active(toy: Sources) -> None:
    mono = stereo_noise()[:, :1]
    content = build_report(np.concatenate([mono, -mono], axis=1), toy, title="opposite")
    expected = build_report(mono, toy, title="mono")
    np.testing.assert_allclose(content.activations, expected.activations, rtol=1e-4)


@NEEDS_TORCH
def test_the_device_reaches_activations_stems_and_components(
    toy: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = stereo_noise()
    expected = build_report(mixture, toy, title="noise", backend="reference")
    content = build_report(mixture, toy, title="noise", backend="torch", device="cpu")
    np.testing.assert_allclose(content.activations, expected.activations, rtol=1e-2, atol=1e-3)
    pairs = zip(content.component_samples, expected.component_samples, strict=True)
    for samples, reference in pairs:
        np.testing.assert_allclose(samples, reference, atol=1e-2)
    halves = dict.fromkeys(toy.names, mixture / 2)
    gpu = {"backend": "torch", "device": "cuda:99"}
    for n_players, stems in ((4, halves), (0, None), (0, halves)):  # the last: activations alone
        monkeypatch.setattr("ondes.report.building.MAX_PLAYERS", n_players)
        with pytest.raises(DeviceError):
            build_report(mixture, toy, title="noise", stems=stems, **gpu)


def test_dictionaries_are_described_with_their_history(toy: Sources) -> None:
    frames = toy.stft.power(stereo_noise())
    estimator = OnlineNMF(4, n_passes=1, random_state=0).fit(frames)
    audio = AudioSettings(SR, toy.stft)
    curve = np.array([[100.0, 2.0], [200.0, 1.0]])
    history = TrainingHistory(curve, n_frames=200, seconds=12.0, divergence=0.5)
    both = {"a": Dictionary(estimator, audio, history), "b": Dictionary(estimator, audio)}
    facts = describe_dictionaries(both)
    assert facts["curves"] == (("a", ((100.0, 2.0), (200.0, 1.0))),)
    assert facts["numbers"] == (("divergence per bin, a", "0.500"),)
    settings = dict(facts["settings"])
    assert settings["Sampling rate"] == f"{SR} Hz"
    assert settings["Dictionary of a"].endswith("frames, 12 s of audio")
    assert settings["Dictionary of b"].endswith("frames")


def test_an_excerpt_is_read_at_the_given_rate_and_place(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", stereo_noise(SR), SR, subtype="FLOAT")
    samples, total = read_excerpt(tmp_path / "a.wav", SR, start=0.25, end=0.75)
    np.testing.assert_array_equal(samples, stereo_noise(SR)[SR // 4 : 3 * SR // 4])
    assert total == 1
    samples, _ = read_excerpt(tmp_path / "a.wav", SR // 2, start=0.5, end=9.5)
    assert samples.shape == (SR // 4, 2)
    with pytest.raises(FileError, match=r"a\.wav: ends before 2 s\."):
        read_excerpt(tmp_path / "a.wav", SR, start=2, end=3)


# ---- the file -----------------------------------------------------------------------------------


def test_existing_file_needs_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("precious")
    with pytest.raises(FileError, match=r"report\.html: exists already"):
        write_report(path, make_content())
    assert path.read_text() == "precious"
    monkeypatch.setattr(page, "render", lambda content: "new")
    assert write_report(path, make_content(), force=True).read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"{tmp_path.name}: is a folder"):
        write_report(tmp_path, make_content(), force=True)
    with pytest.raises(FileError, match=r"report\.html: .* folder does not exist"):
        write_report(tmp_path / "missing" / "report.html", make_content())


def test_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    path = tmp_path / "report.html"
    path.write_text("precious")
    monkeypatch.setattr(page, "render", lambda content: "new")
    monkeypatch.setattr(atomic_file.os, "fsync", fail)
    with pytest.raises(FileError, match=r"report\.html: cannot be written \(disk full\)\."):
        write_report(path, make_content(), force=True)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["precious"]


# ---- in a browser -------------------------------------------------------------------------------

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--remote-debugging-pipe",
)
# Every start of a sound records the time at which its first sample would have played.
SPY = """
window.origins = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (time, offset) {
  origins.push(time - offset);
  return start.call(this, time, offset);
};
"""


class Browser:
    """Chromium, spoken to by the DevTools protocol over its pipe."""

    def __init__(self, profile: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh",
             str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._numbers = itertools.count()
        self._received = b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=SPY)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        assert self._process.stdin
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        while b"\0" not in self._received:
            received = self._process.stdout.read1(1 << 16)
            assert received, "Chromium has ended"
            self._received += received
        message, self._received = self._received.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 5) -> None:
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"timed out: {expression}"
            time.sleep(0.02)

    def open(self, path: Path, width: int = 1200) -> None:
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for(f"location.href == {path.as_uri()!r} && document.readyState == 'complete'")

    def press(self, key: str) -> None:
        code, text = {"Tab": (9, ""), "Space": (32, " "), "Enter": (13, "\r")}[key]
        what = {"key": text if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **what)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def tab_to(self, selector: str) -> None:
        for _ in range(40):
            if self.evaluate(f"document.activeElement.matches({selector!r})"):
                return
            self.press("Tab")
        pytest.fail(f"Tab never reaches {selector}")

    def close(self) -> None:
        self._session = {}
        self.call("Browser.close")
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder with blanks")
    content = make_content(title=f"{HOSTILE} {LONG_WORD}", numbers=((LONG_WORD, LONG_WORD),))
    return write_report(folder / "report.html", content)


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Browser]:
    """The browser with the report open; in every test it logs nothing and loads nothing else."""
    browser.open(report)
    yield browser
    browser.evaluate("0")
    kinds = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
    assert [event for event in browser.events if event["method"] in kinds] == []
    addresses = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert report.as_uri() in addresses
    assert all(address.startswith(("file:", "data:", "blob:")) for address in addresses)
    assert browser.evaluate("window.hacked") is None


POSITION = "Number(document.querySelector('#seek').value)"


def test_every_sound_loads(opened: Browser) -> None:
    durations = opened.evaluate("""
      Promise.all([...document.querySelectorAll("audio")].map((audio) => {
        audio.preload = "metadata";
        audio.load();
        return new Promise((resolve, reject) => {
          audio.onloadedmetadata = () => resolve(audio.duration);
          audio.onerror = reject;
        });
      }))
    """)
    assert durations == pytest.approx([SECONDS] * 5, abs=0.01)
    assert opened.evaluate("Number(document.querySelector('#seek').max)") == SECONDS


def test_pictures_load(opened: Browser) -> None:
    assert opened.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")


@pytest.mark.parametrize("track", ["mixture", "source-2", "component-1"])
def test_keyboard_plays_and_pauses(opened: Browser, track: str) -> None:
    button = f"[data-plays={track}]"
    label = f"document.querySelector('{button}').getAttribute('aria-label')"
    opened.tab_to(button)
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    opened.press("Space")
    opened.wait_for(f"{POSITION} > 0.2")
    assert opened.evaluate(label).startswith("Pause ")
    assert opened.evaluate("document.querySelector('#choice').value") == track
    opened.press("Enter")
    assert opened.evaluate(label).startswith("Play ")
    stopped = opened.evaluate(POSITION)
    time.sleep(0.1)
    assert opened.evaluate(POSITION) == stopped


def test_sounds_play_in_step(opened: Browser) -> None:
    choose = "document.querySelector('#choice').value = '{}', document.querySelector('#choice')"
    choose += ".dispatchEvent(new Event('change')), 0"
    opened.evaluate(choose.format("sources"))
    opened.tab_to("#toggle")
    opened.press("Space")
    opened.wait_for("origins.length == 2")
    assert opened.evaluate("document.querySelectorAll('.audible').length") == 2
    opened.evaluate("document.querySelector('[data-mutes=source-1]').click()")
    assert opened.evaluate("[...document.querySelectorAll('.audible')].map((e) => e.id)") == [
        "source-2"
    ]
    opened.evaluate(choose.format("mixture"))
    opened.wait_for("origins.length == 3")
    assert opened.evaluate("Math.max(...origins) - Math.min(...origins)") < 1e-9
    assert opened.evaluate("document.querySelector('#trouble').textContent") == ""


def test_a_click_on_a_picture_goes_there_and_the_end_rewinds(opened: Browser) -> None:
    opened.evaluate("document.querySelector('[data-plays=mixture]').click()")
    position = opened.evaluate("""(() => {
      const area = document.querySelector("#source-1 .area");
      const { left, width } = area.getBoundingClientRect();
      area.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: left + 0.9 * width }));
      return Number(document.querySelector("#seek").value);
    })()""")
    assert position == pytest.approx(0.9 * SECONDS, abs=0.05)
    opened.wait_for(f"{POSITION} == 0")
    assert opened.evaluate("document.querySelector('#toggle').textContent") == "Play"


@pytest.mark.parametrize("width", [360, 390, 1200])
def test_fits_the_width(opened: Browser, report: Path, width: int) -> None:
    opened.open(report, width)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    hidden = "[...document.querySelectorAll('.grid .track')].forEach((track) => "
    opened.evaluate(hidden + "track.style.contentVisibility = 'visible')")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_without_scripts_the_browser_has_its_own_players(opened: Browser, report: Path) -> None:
    opened.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened.open(report, 360)
        widths = opened.evaluate(
            "[...document.querySelectorAll('audio')].map((a) => a.offsetWidth)"
        )
        assert len(widths) == 5
        assert min(widths) > 200
        assert opened.evaluate("document.querySelector('#transport').offsetHeight") == 0
        assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    finally:
        opened.call("Emulation.setScriptExecutionDisabled", value=False)
