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
from test_trained import weights

from ondes import atomic_file
from ondes.errors import DeviceError, FileError
from ondes.models.dictionary import Dictionary
from ondes.models.history import SeparatorHistory, TrainingHistory
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.estimator import OnlineNMF
from ondes.report import (
    Component,
    Explained,
    ReportContent,
    Track,
    build_report,
    describe_dictionaries,
    describe_excerpt,
    describe_separator,
    page,
    render,
    write_report,
)
from ondes.report.excerpts import ShownExcerpt
from ondes.report.sounds import Budget, EncodedSound, budget_for
from ondes.report.tracks import TrackBuilder
from ondes.separation import Sources, separate
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
pytest.importorskip("jinja2", reason="the extra 'report' is not installed")

SR, N_FFT, SECONDS = 8000, 256, 6.0
HOSTILE = """<script>window.hacked = 1</script>"'><img src=x onerror="window.hacked = 1">"""
LONG_WORD = "a_file_name_without_any_blank_" * 8


def make_track(name: str, samples: Any, sr: int = SR, **facts: Any) -> Track:
    samples = samples[:, None] if samples.ndim == 1 else samples
    stft = Stft(N_FFT)
    builder = TrackBuilder(sr, samples.shape[1], len(samples), stft, bit_rate=48000)
    for block in np.array_split(samples, 3):
        builder.write(block)
    return builder.finish(name, **facts)


def make_content(**changes: Any) -> ReportContent:
    """A tone of 1 kHz in the first half, noise in the second; component 1 plays its last 2 s."""
    n = round(SR * SECONDS)
    t = np.arange(n) / SR
    tone = (0.5 * np.sin(2 * np.pi * 1000 * t) * (t < SECONDS / 2)).astype(np.float32)
    noise = (0.1 * np.random.default_rng(0).standard_normal(n) * (t >= SECONDS / 2)).astype(
        np.float32
    )
    stft = Stft(N_FFT)
    frames = [stft.power(x) for x in (tone, noise)]
    dictionary = np.array([f.sum(axis=0) / f.sum() for f in frames])
    powers = [np.square(x).reshape(100, -1).mean(axis=1) for x in (tone, noise)]
    sources = (make_track("Tone", tone, scores=(-0.66, 12.34), components=(0,)),
               make_track("Noise", noise, components=(1,)))  # fmt: skip
    last = make_track("", noise[-2 * SR :]).sound
    sounds = (sources[0].sound, replace(last, start=SECONDS - 2))
    content = ReportContent(
        title="A tone & some noise",
        sr=SR,
        model_sr=SR,
        n_samples=n,
        mixture=make_track("Mixture", tone + noise),
        sources=sources,
        components=tuple(Component(i, dictionary[i], powers[i], sounds[i]) for i in range(2)),
        explained=Explained(0.25, 1.0, 2.0),
        numbers=(("gain", "9.9 dB"), ("Speed", "241 × real time")),
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


def test_shows_sources_components_learning_settings_in_this_order(parsed: Page) -> None:
    words = (
        "All tracks play in sync",
        "SI-SDR 12.3 dB · 92.",
        "Component 0",
        "How well the sound is explained",
        "9.9 dB",
        "n_components",
        "Written by ondes",
    )
    # "Component 0" is also a choice of the player, which comes first.
    main = parsed.text[parsed.text.index("All tracks play in sync") :]
    places = [main.index(word) for word in words]
    assert places == sorted(places)
    assert "Shown: 0:00 to 0:06 of 3:12:45" in parsed.text


def test_the_summary_has_the_scores_before_and_after(parsed: Page) -> None:
    contents = parsed.text[: parsed.text.index("All tracks play in sync")]
    assert re.search(r"Tone\s*92\.\d%\s*−0\.7 dB\s*12\.3 dB\s*\+13\.0 dB", contents)
    assert "signal-to-distortion ratio" in contents
    assert "SI-SDR" not in Page(render(make_content(sources=()))).text
    links = [each["href"] for each in parsed.all("a") if each["href"].startswith("#")]
    assert {"#summary", "#sources", "#components", "#learning", "#settings"} <= set(links)
    assert len([each for each in parsed.all("img") if "Colours" in each["alt"]]) == 1


def test_learning_is_judged_against_one_spectrum(parsed: Page) -> None:
    assert "error of the components is 25% of the error of one average spectrum" in parsed.text
    bars = [each["style"] for each in parsed.all("span") if each.get("class") == "bar"]
    assert bars == ["--length: 12.50%", "--length: 50.00%", "--length: 100.00%"]
    useless = Page(render(make_content(explained=Explained(0.99, 1.0, 2.0))))
    assert "no better than one average spectrum" in useless.text


def test_each_track_has_a_labelled_player(parsed: Page) -> None:
    labels = [audio["aria-label"] for audio in parsed.all("audio")]
    assert labels == ["Mixture", "Tone", "Noise", "Component 0", "Component 1"]
    assert all("aria-label" in button or "id" in button for button in parsed.all("button"))


def test_pictures_have_descriptions(parsed: Page) -> None:
    alternatives = [image["alt"] for image in parsed.all("img")]
    alternatives += [image["aria-label"] for image in parsed.all("svg")]
    assert len(set(alternatives)) == len(alternatives) == 3 + 1 + 2 * 2
    about = {text.split(":")[0].split(",")[0]: text for text in alternatives}
    assert re.search(r"from 9\d\d Hz to 1.0 kHz", about["Spectrogram of Tone"])
    assert "strongest at 1.0 kHz" in about["Spectrum of component 0"]
    assert "for 50% of the time" in about["Level of component 1"]


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
        sources=(replace(make_content().mixture, name=HOSTILE, components=(0, 1)),),
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
        {"components": (), "sources": (), "numbers": (), "settings": (), "excerpt": None,
         "explained": None},
        {"sources": ()},
        {"components": (Component(0, np.zeros(N_FFT // 2 + 1), np.zeros(1)),), "sources": ()},
        {"explained": Explained(0.0, 0.0, 0.0)},
    ],
    ids=["bare", "no sources", "silent model", "silence"],
)  # fmt: skip
def test_shows_what_there_is(changes: dict[str, Any]) -> None:
    sparse = Page(render(make_content(**changes)))
    assert "nan" not in "".join(str(attributes) for attributes in sparse.all("path", "span"))
    assert "NaN" not in sparse.text


@pytest.mark.parametrize("sr", [4000, 22050, 37800, 96000])
@pytest.mark.parametrize("shape", [(1,), (5000,), (5000, 2), (5000, 6)])
def test_any_rate_channels_and_length(sr: int, shape: tuple[int, ...]) -> None:
    samples = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mixture = make_track("Mixture", samples, sr)
    bare = {"sources": (), "components": (), "n_samples": len(samples)}
    sound = decode_sounds(render(make_content(sr=sr, mixture=mixture, **bare)))[0]
    assert len(sound.samples) / sound.sr == pytest.approx(len(samples) / sr, abs=2 / sr)
    assert sound.samples.shape[1] == (2 if shape[1:] == (2,) else 1)


def test_silence() -> None:
    silence = make_track("Nothing", np.zeros(4000, np.float32))
    content = make_content(mixture=silence, sources=(silence,), components=(), n_samples=4000)
    html = render(content)
    assert html.count("silence.") == 2
    assert "0.0% of the mixture’s power" in html


class DecodedSound:
    def __init__(self, uri: str) -> None:
        file = io.BytesIO(base64.b64decode(uri.split(",")[1]))
        self.samples, self.sr = soundfile.read(file, always_2d=True)


def decode_sounds(html: str) -> list[DecodedSound]:
    return [DecodedSound(audio["src"]) for audio in Page(html).all("audio")]


def test_sounds_keep_their_levels_and_are_not_clipped(toy: Sources) -> None:
    loud = 4 * stereo_noise(2 * SR)
    content = build_report(loud, toy, title="loud")
    mixture, *stems = decode_sounds(render(content))[:3]
    expected = separate(loud, toy, sr=SR)
    for sound, original in zip((mixture, *stems), (loud, *expected.values()), strict=True):
        level = np.std(original) / np.abs(loud).max()
        assert np.std(sound.samples) == pytest.approx(level, rel=0.1)


def test_sounds_without_opus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "available_subtypes", lambda name: {"VORBIS": ""})
    html = render(make_content())
    assert html.count("data:audio/flac") == 5
    lengths = [len(sound.samples) / SR for sound in decode_sounds(html)]
    assert lengths == [SECONDS] * 4 + [2.0]


def test_a_sound_is_the_same_however_it_is_cut() -> None:
    samples = stereo_noise(30000) / 10
    whole, cut = EncodedSound(11025, 2), EncodedSound(11025, 2)
    whole.write(samples)
    for block in np.array_split(samples, 37):
        cut.write(block)
    decoded = [soundfile.read(io.BytesIO(each.finish()))[0] for each in (whole, cut)]
    np.testing.assert_array_equal(*decoded)


@pytest.mark.parametrize("seconds", [5.0, 30.0, 180.0])
@pytest.mark.parametrize("n_components", [0, 8, 32, 128, 400])
def test_budget_keeps_the_page_small(seconds: float, n_components: int) -> None:
    budget = budget_for(seconds, 2, 5, n_components)
    stems = 5 * 2 * seconds * budget.stem_bit_rate / 8
    components = budget.n_players * budget.component_seconds * budget.component_bit_rate / 8
    assert 4 / 3 * (stems + components) < 7.5e6
    assert budget.n_players == n_components or budget.component_seconds >= 3
    assert budget.n_players > 0 or n_components == 0


def test_the_page_says_which_components_play() -> None:
    content = make_content()
    first, second = content.components
    some = Page(render(replace(content, components=(first, replace(second, sound=None)))))
    assert "Only the loudest 1 of" in some.text
    assert len(some.all("audio")) == 4
    options = [each["value"] for each in some.all("option")]
    assert options == ["mixture", "sources", "source-1", "source-2", "component-0"]
    short = tuple(replace(c, sound=replace(second.sound)) for c in content.components)
    assert "Each player has the 2 s" in render(replace(content, components=short))


def decode_image(uri: str) -> np.ndarray[Any, Any]:
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as image:
        return np.asarray(image.convert("RGB"), dtype=float).sum(axis=2)


def test_spectrogram_puts_sound_where_the_axes_say(html: str, parsed: Page) -> None:
    (picture,) = (
        each for each in parsed.all("img") if each["alt"].startswith("Spectrogram of Tone")
    )
    tone = decode_image(picture["src"])
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
        ({"n_samples": 0}, "at least one sample"),
        ({"components": make_content().components[1:]}, "not numbered from 0 on"),
        ({"components": make_content().components[:1]}, "Noise lists components beyond the 1"),
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


def decibels(power: float) -> float:
    return float(10 * np.log10(power))


def test_shares_are_those_of_the_sounds_that_play(toy: Sources) -> None:
    mixture = stereo_noise(SR)
    content = build_report(mixture, toy, title="noise", scores={"low": (1.0, 3.0)})
    assert [(s.name, s.scores, s.components) for s in content.sources] == [
        ("low", (1.0, 3.0), (0, 1)),
        ("high", None, (2, 3)),
    ]
    assert content.mixture.power == pytest.approx(np.mean(mixture**2), rel=1e-5)
    stems = separate(mixture, toy, sr=SR)
    for source in content.sources:
        expected = decibels(np.mean(stems[source.name] ** 2))
        assert decibels(source.power) == pytest.approx(expected, abs=0.1)
    each = replace(toy, source_of=np.arange(4), names=tuple("0123"))
    sounds = separate(mixture, each, sr=SR)
    html = render(content)
    for component in content.components:
        expected = np.mean(sounds[str(component.index)] ** 2)
        assert decibels(component.power) == pytest.approx(decibels(expected), abs=0.1)
        found = re.search(rf'id="component-{component.index}-name".*?([\d.]+)% of', html, re.DOTALL)
        assert found
        share = expected / np.mean(mixture**2)
        assert decibels(float(found[1]) / 100) == pytest.approx(decibels(share), abs=0.1)
    order = [each["id"] for each in Page(html).all("article")][3:]
    powers = [content.components[int(each.split("-")[1])].power for each in order]
    assert powers[0] >= powers[1]
    assert powers[2] >= powers[3]


def test_component_sounds_are_those_of_the_component(toy: Sources) -> None:
    mono = stereo_noise(2 * SR)[:, :1] / 10
    content = build_report(mono, toy, title="noise")
    each = replace(toy, source_of=np.arange(4), names=tuple("0123"))
    sounds = separate(mono, each, sr=SR)
    for component in content.components:
        assert component.sound is not None
        found = soundfile.read(io.BytesIO(component.sound.data))[0]
        expected = sounds[str(component.index)][:, 0]
        assert len(found) == len(expected)
        assert np.corrcoef(found, expected)[0, 1] > 0.7  # Opus at 24 kbit/s


def test_a_component_plays_where_it_is_loudest(toy: Sources) -> None:
    from ondes.report.sounds import component_sounds

    mixture = stereo_noise(6 * SR) * np.repeat([0.01, 0.1, 0.01], 2 * SR)[:, None].astype("f4")
    powers = np.repeat([[0.0], [1.0], [0.5]], 4, axis=1)
    shown = ShownExcerpt(mixture, sr=SR)
    sounds = component_sounds(shown, toy, powers, Budget(24000, 24000, 2.0, 3), gain=1.0)
    assert len(sounds) == 3
    for sound in sounds.values():
        assert (sound.start, sound.seconds) == (2.0, 2.0)
        assert soundfile.info(io.BytesIO(sound.data)).duration == pytest.approx(2.0)


def test_channels_in_opposite_phase_are_active(toy: Sources) -> None:
    mono = stereo_noise(SR)[:, :1]
    content = build_report(np.concatenate([mono, -mono], axis=1), toy, title="opposite")
    expected = build_report(mono, toy, title="mono")
    for found, single in zip(content.components, expected.components, strict=True):
        assert found.power == pytest.approx(single.power, rel=1e-3)
        assert found.sound is not None
        assert np.std(soundfile.read(io.BytesIO(found.sound.data))[0]) > 1e-3


@NEEDS_TORCH
def test_the_device_reaches_stems_and_components(toy: Sources) -> None:
    mixture = stereo_noise()
    expected = build_report(mixture, toy, title="noise", backend="reference")
    content = build_report(mixture, toy, title="noise", backend="torch", device="cpu")
    for found, reference in zip(content.components, expected.components, strict=True):
        assert found.power == pytest.approx(reference.power, rel=1e-2)
    halves = dict.fromkeys(toy.names, mixture / 2)
    for stems in (halves, None):
        with pytest.raises(DeviceError):
            build_report(
                mixture, toy, title="noise", stems=stems, backend="torch", device="cuda:99"
            )


def test_a_model_of_the_sound_explains_more_than_one_spectrum() -> None:
    t = np.arange(4 * SR) / SR
    sound = np.where(t % 1 < 0.5, np.sin(2000 * t), np.sin(9000 * t)).astype(np.float32)
    stft = Stft(256)
    frames = stft.power(sound)
    rows = np.stack([frames[20:40].mean(axis=0), frames[66:80].mean(axis=0)])
    rows = rows / rows.sum(axis=1, keepdims=True)
    known = Sources(rows, np.arange(2), ("a", "b"), AudioSettings(SR, stft))
    explained = build_report(sound, known, title="known").explained
    assert explained is not None
    assert explained.components < 0.6 * explained.one_spectrum < explained.flat


def test_dictionaries_are_described_with_their_history(toy: Sources) -> None:
    frames = toy.stft.power(stereo_noise())
    estimator = OnlineNMF(4, n_passes=1, random_state=0).fit(frames)
    audio = AudioSettings(SR, toy.stft)
    history = TrainingHistory(n_frames=200, seconds=12.0, divergence=0.5)
    both = {"a": Dictionary(estimator, audio, history), "b": Dictionary(estimator, audio)}
    settings = dict(describe_dictionaries(both)["settings"])
    assert settings["Sampling rate"] == f"{SR} Hz"
    assert settings["Dictionary of a"].endswith("frames, 12 s of audio")
    assert settings["Dictionary of b"].endswith("frames")


def test_a_trained_separator_has_a_report(tmp_path: Path) -> None:
    audio = AudioSettings(SR, Stft(32, 8), spectrum="magnitude")
    history = SeparatorHistory((3, 4), (60.0, 70.0), (9.5, -1.0), 100)
    separator = TrainedSeparator(("a", "b"), audio, weights(), history)
    separator.save(tmp_path / "talk.ondes")
    mixture = stereo_noise(2 * SR) / 10
    soundfile.write(tmp_path / "mix.wav", mixture, SR, subtype="FLOAT")
    command = [sys.executable, "-m", "ondes", "report", "mix.wav", "-d", "talk.ondes"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    parsed = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [each["aria-label"] for each in parsed.all("audio")] == ["Mixture", "a", "b"]
    assert "9.5 dB" in parsed.text
    assert "−1.0 dB" in parsed.text
    stems = separate(mixture, separator, sr=SR)
    for name in "ab":
        share = np.mean(stems[name] ** 2) / np.mean(mixture**2)
        assert f"{share:.1%} of the mixture’s power" in parsed.text
    assert describe_separator(separator)["settings"][-1] == ("Recordings of b", "4, 70 s in use")


def test_an_excerpt_is_read_as_often_as_needed(tmp_path: Path) -> None:
    noise = stereo_noise(SR)
    soundfile.write(tmp_path / "a.wav", noise, SR, subtype="FLOAT")
    shown = ShownExcerpt(tmp_path / "a.wav", start=0.25, end=0.75)
    for _ in range(2):
        samples = np.concatenate(list(shown.blocks()))
        np.testing.assert_array_equal(samples, noise[SR // 4 : 3 * SR // 4])
    np.testing.assert_array_equal(shown.part(100, 900), samples[100:900])
    assert (shown.total, shown.n_samples, shown.sr) == (1, SR // 2, SR)
    assert shown.peak == np.abs(samples).max()
    with (tmp_path / "a.wav").open("rb") as file:
        stream = ShownExcerpt(file, start=0.25, end=0.75)
    np.testing.assert_array_equal(np.concatenate(list(stream.blocks())), samples)
    with pytest.raises(FileError, match=r"a\.wav: ends before 2 s\."):
        ShownExcerpt(tmp_path / "a.wav", start=2, end=3)


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
// Everything that is heard also goes to an analyser.
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (target, ...rest) {
  if (target === this.context.destination) {
    window.heard ??= new AnalyserNode(this.context, { fftSize: 4096 });
    connect.call(this, heard);
  }
  return connect.call(this, target, ...rest);
};
window.level = () => {
  const samples = new Float32Array(4096);
  window.heard?.getFloatTimeDomainData(samples);
  return Math.sqrt(samples.reduce((sum, x) => sum + x * x, 0) / samples.length);
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
    assert durations == pytest.approx([*[SECONDS] * 4, 2], abs=0.02)  # Opus adds 6 ms
    assert opened.evaluate("Number(document.querySelector('#seek').max)") == SECONDS


def test_pictures_load(opened: Browser) -> None:
    assert opened.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")


@pytest.mark.parametrize("track", ["mixture", "source-2", "component-1"])
def test_keyboard_plays_and_pauses(opened: Browser, track: str) -> None:
    button = f"[data-plays={track}]"
    label = f"document.querySelector('{button}').getAttribute('aria-label')"
    if track.startswith("component"):
        opened.tab_to(f"details:has(#{track}) > summary")
        opened.press("Enter")
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


CLICK = "document.querySelector('{}').click()"


def test_mute_and_play_agree_in_what_is_heard(opened: Browser) -> None:
    opened.evaluate(CLICK.format("[data-mutes=source-1]"))
    pressed = "document.querySelector('[data-mutes=source-1]').getAttribute('aria-pressed')"
    assert opened.evaluate(pressed) == "true"
    assert opened.evaluate("document.querySelector('#choice').value") == "sources"
    opened.evaluate(CLICK.format("#toggle"))
    opened.wait_for(f"{POSITION} > 0.3")
    assert opened.evaluate("level()") < 0.001  # the other source begins later
    opened.evaluate(CLICK.format("[data-plays=source-1]"))
    assert opened.evaluate(pressed) == "false"
    opened.wait_for("level() > 0.3")  # a tone of amplitude 0.5
    opened.evaluate(CLICK.format("[data-mutes=source-1]"))
    opened.wait_for("level() < 0.001")
    assert opened.evaluate("document.querySelectorAll('.audible').length") == 0
    opened.evaluate(CLICK.format("[data-plays=source-1]"))
    opened.wait_for("level() > 0.3")


def test_solo_and_volume_are_heard(opened: Browser) -> None:
    opened.evaluate(CLICK.format("[data-solos=source-2]"))
    opened.evaluate(CLICK.format("#toggle"))
    opened.wait_for(f"{POSITION} > 0.3")
    assert opened.evaluate("[...document.querySelectorAll('.audible')].map((e) => e.id)") == [
        "source-2"
    ]
    assert opened.evaluate("level()") < 0.001
    opened.evaluate(CLICK.format("[data-solos=source-2]"))
    opened.wait_for("level() > 0.3")
    opened.evaluate("""(() => {
      const volume = document.querySelector("[data-volume=source-1]");
      volume.value = -20;
      volume.dispatchEvent(new Event("input", { bubbles: true }));
    })()""")
    opened.wait_for("Math.abs(20 * Math.log10(level() / 0.354) + 20) < 1")
    label = "document.querySelector('[data-volume=source-1]').getAttribute('aria-valuetext')"
    assert opened.evaluate(label) == "-20 dB"


def test_the_space_bar_plays_and_pauses(opened: Browser) -> None:
    opened.evaluate("document.activeElement.blur()")
    opened.press("Space")
    opened.wait_for(f"{POSITION} > 0.2")
    opened.press("Space")
    assert opened.evaluate("document.querySelector('#toggle').textContent") == "Play"


def test_a_loop_begins_again(opened: Browser) -> None:
    opened.evaluate(CLICK.format("#loop"))
    opened.evaluate(CLICK.format("[data-plays=component-1]"))
    assert opened.evaluate(POSITION) == pytest.approx(SECONDS - 2, abs=0.3)  # where its sound is
    opened.wait_for(f"{POSITION} > {SECONDS - 1}")
    opened.wait_for(f"{POSITION} < {SECONDS - 1}")
    assert opened.evaluate("document.querySelector('#toggle').textContent") == "Pause"
    opened.wait_for("level() > 0.03")


def test_a_source_can_be_downloaded(opened: Browser, tmp_path: Path) -> None:
    opened.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    opened.evaluate(CLICK.format("[data-downloads=source-1]"))
    path = tmp_path / "Tone.ogg"
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.05)
    assert soundfile.info(path).duration == pytest.approx(SECONDS, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_borders_of_controls_are_visible(opened: Browser, scheme: str) -> None:
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    opened.call("Emulation.setEmulatedMedia", features=features)
    colours = opened.evaluate("""
      [...document.querySelectorAll("button, select")].map((e) =>
        [getComputedStyle(e).borderTopColor, getComputedStyle(document.body).backgroundColor])
    """)

    def luminance(colour: str) -> float:  # as WCAG 2 defines it
        parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    assert len(colours) > 10
    for border, paper in colours:
        low, high = sorted(map(luminance, (border, paper)))
        assert (high + 0.05) / (low + 0.05) >= 3


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
    opened.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    hidden = "[...document.querySelectorAll('.grid .track')].forEach((track) => "
    opened.evaluate(hidden + "track.style.contentVisibility = 'visible')")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_controls_are_one_row_on_a_phone(opened: Browser, report: Path) -> None:
    opened.open(report, 360)
    rows = opened.evaluate("""[...document.querySelectorAll("#transport, .buttons")].map((row) =>
      [...row.querySelectorAll("button, input, select")].filter((each) => each.offsetParent)
        .map((each) => each.getBoundingClientRect())
        .map((box) => Math.round((box.top + box.bottom) / 2)))""")
    assert max(map(len, rows)) == 5
    assert all(max(middles) - min(middles) <= 1 for middles in rows if middles), rows


def test_components_are_folded_under_their_source(opened: Browser) -> None:
    folds = "[...document.querySelectorAll('details > summary')].map((each) => each.innerText)"
    assert opened.evaluate(folds) == ["1 component of Tone", "1 component of Noise"]
    seen = "document.querySelector('#component-0').checkVisibility()"
    assert opened.evaluate(seen) is False
    opened.evaluate("document.querySelector('details > summary').click()")
    assert opened.evaluate(seen) is True


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


def test_a_sound_in_the_page_has_the_same_bytes_every_time():
    def encoded():
        sound = EncodedSound(16000, 1)
        sound.write(np.sin(np.arange(20000) / 9))
        return sound.finish()

    first = encoded()
    assert first == encoded()
    assert soundfile.read(io.BytesIO(first))[0].shape == (20000,)
    place = 0
    while place < len(first):  # every page has the checksum of the definition
        n_segments = first[place + 26]
        n_bytes = 27 + n_segments + sum(first[place + 27 : place + 27 + n_segments])
        page = bytearray(first[place : place + n_bytes])
        expected = int.from_bytes(page[22:26], "little")
        page[22:26] = bytes(4)
        remainder = 0
        for byte in page:
            for bit in range(7, -1, -1):
                top = (remainder >> 31) ^ (byte >> bit & 1)
                remainder = (remainder << 1 & 0xFFFFFFFF) ^ (0x04C11DB7 if top else 0)
        assert remainder == expected
        place += n_bytes
