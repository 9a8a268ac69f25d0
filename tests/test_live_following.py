"""Dictionaries that follow live sound are not late, and move as those of recordings do."""

from __future__ import annotations

import gc
import json
import signal
import tracemalloc

import numpy as np
import pytest
from hostile import noise, tones, write_sound
from sound_server import RATE, SoundServer, clicks, lateness, missing
from test_live import BETWEEN, PATIENCE_S, live

import ondes
from ondes.live.following import BATCH_SIZE, LiveAdaptingSources
from ondes.models.adaptation import AdaptedSources
from ondes.models.masks import source_masks
from ondes.nmf.encoding import Compute
from ondes.separation import Sources
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

HOST = Compute(n_jobs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Dictionaries of two sources for live sound."""
    found = tmp_path_factory.mktemp("models")
    for name, samples in {"speech": tones(1, 4), "room": noise(1, 4)}.items():
        write_sound(found / f"{name}.wav", samples)
        learned = ondes.learn(found / f"{name}.wav", 3, sr=8000, delay=0.03, n_jobs=1)
        learned.save(found / f"{name}.ondes")
    return found


@pytest.fixture(scope="module")
def sources():
    """Random spectra of two sources, which frames of other spectra move."""
    audio = AudioSettings(8000, Stft.with_delay(0.03, 8000), spectrum="magnitude")
    rows = np.random.default_rng(1).random((6, audio.n_bins)) ** 4
    rows /= rows.sum(axis=1, keepdims=True)
    return Sources(rows, np.arange(6) // 3, ("speech", "room"), audio)


def frames_of(sources, n):
    rng = np.random.default_rng(0)
    power = rng.exponential(size=(n, sources.audio.n_bins)).astype(np.float32)
    return power, np.sqrt(power.max(axis=1))


def test_masks_are_those_of_what_was_learned_from_the_batches_before(sources):
    n = 3 * BATCH_SIZE
    power, amplitude = frames_of(sources, n)
    found = LiveAdaptingSources(sources, ["room"]).masks(HOST).push(power, amplitude)
    learner, now = AdaptedSources(sources, ["room"], HOST), sources
    for first in range(0, n, BATCH_SIZE):
        rows = slice(first, first + BATCH_SIZE)
        frames = sources.audio.from_power(power[rows])
        np.testing.assert_allclose(
            found[:, rows], source_masks(frames, now, compute=HOST), atol=1e-5
        )
        now = learner.learn(frames, amplitude[rows])
    fixed = source_masks(sources.audio.from_power(power), sources, compute=HOST)
    assert np.abs(found - fixed)[:, 2 * BATCH_SIZE :].max() > 0.01


def test_masks_of_live_sound_come_at_once_and_do_not_depend_on_the_cut(sources):
    power, amplitude = frames_of(sources, 2 * BATCH_SIZE + 5)
    stream = LiveAdaptingSources(sources, ["room"]).masks(HOST)
    whole = stream.push(power, amplitude)
    assert stream.flush().shape[1] == 0
    parts = [stream.push(power[n : n + 1], amplitude[n : n + 1]) for n in range(len(power))]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_what_adapts_is_heard_without_further_delay(tmp_path, folder):
    """Through `ondes live`, between a microphone and a loudspeaker."""
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not installed here")
    models = ["-d", folder / "speech.ondes", "-d", folder / "room.ondes", "--adapt", "room"]
    heard = ["--hear", "speech", "--hear", "room", "--json"]
    server = SoundServer(tmp_path)
    try:
        with live(server, *BETWEEN, *models, *heard) as process:
            with server.recorded(tmp_path / "both.raw") as found:
                server.play(clicks(4))
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        server.close()
    facts = json.loads(out)
    late, likeness = lateness(*found[0].T)
    assert facts["delay"] == 0.03
    assert facts["delay"] <= late / RATE < 0.4
    assert likeness > 0.3 or facts["missing"] > 0.1  # a busy machine has gaps


@pytest.mark.parametrize("kind", ["network", "dictionaries", "following"])
def test_memory_does_not_grow_while_sound_goes_on(sources, kind):
    model = {
        "network": lambda: ondes.load("denoise").with_delay(0.03),
        "dictionaries": lambda: sources,
        "following": lambda: LiveAdaptingSources(sources, ["room"]),
    }[kind]()
    separator = ondes.Separator(model, compute=HOST)
    size = separator.sr // 100
    block = 0.1 * np.random.default_rng(0).standard_normal(size).astype(np.float32)
    held = []
    tracemalloc.start()
    try:
        for _ in range(5):
            for _ in range(4 * BATCH_SIZE):
                separator.push(block)
            gc.collect()  # also the lists of free objects
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[4] - held[2] < 64 * block.nbytes, held  # of the 256 that came meanwhile
