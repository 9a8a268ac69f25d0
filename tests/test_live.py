"""Live sound: networks that hear the past alone, gains, devices; with a real sound server."""

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hostile import ENVIRONMENT, as_strings
from sound_server import RATE, SoundServer, clicks, lateness, missing
from test_shelf import SR, all_masks, magnitudes, weights

import ondes
from ondes.live.mix import LiveMix
from ondes.live.sound import WaitingSound
from ondes.models.band_network import LiveBandMasks

PATIENCE_S = 30.0

# ---- the network ----


def live_masks_in_plain_loops(given, frames, half_life):
    """The definition, number by number, in float64; one stream."""

    def normal(vector):
        return vector / np.sqrt(np.mean(vector**2) + 1e-5)

    n_states = given.outwards.shape[1]
    half, n_bands = n_states // 2, len(given.place)
    memory = np.zeros((len(given.inwards), n_bands, half))
    energy = count = 0.0
    every = []
    for frame in frames.astype(np.float64):
        power = frame**2
        energy = energy * 0.5 ** (1 / half_life) + power.mean()
        count = count * 0.5 ** (1 / half_life) + 1
        power = power / (energy / count) + 1e-10
        x, bands, first = np.zeros((n_bands, given.place.shape[1])), [], 0
        for group, rows in enumerate(given.embedding):
            for number, matrix in enumerate(rows.astype(float)):
                bins = slice(first, first + len(matrix))
                x[len(bands)] = power[bins] ** 0.125 @ matrix + given.place[len(bands)]
                bands.append((group, number, bins))
                first += len(matrix)
        for sweep in range(len(given.inwards)):
            a, b, c = (w[sweep].astype(float) for w in (given.inwards, given.bias, given.outwards))
            gates = np.array([normal(vector) @ a + b for vector in x])
            keep = 1 / (1 + np.exp(-gates[:, :n_states]))
            new, gain = gates[:, n_states : 2 * n_states], np.maximum(gates[:, 2 * n_states :], 0)
            state = (1 - keep) * new
            if sweep % 2 == 0:
                state[:, :half] += keep[:, :half] * memory[sweep]
                memory[sweep] = state[:, :half]
            else:
                for k in range(1, n_bands):
                    state[k, :half] += keep[k, :half] * state[k - 1, :half]
                    m = n_bands - 1 - k
                    state[m, half:] += keep[m, half:] * state[m + 1, half:]
            x = x + (state * gain) @ c
        masks = np.zeros((given.n_sources, given.n_bins))
        for k, (group, number, bins) in enumerate(bands):
            between = normal(x[k]) @ given.hidden[group][number].astype(float)
            between = np.maximum(between + given.hidden_bias[group][number, 0], 0)
            logits = between @ given.mask[group][number].astype(float)
            each = np.exp((logits + given.mask_bias[group][number, 0]).reshape(len(masks), -1))
            masks[:, bins] = each / each.sum(axis=0)
        every.append(masks)
    return np.stack(every, axis=1)


def test_live_masks_are_what_the_definition_says_in_plain_loops():
    frames = magnitudes(40) * np.linspace(0.1, 10, 40, dtype=np.float32)[:, None]
    found = all_masks(LiveBandMasks(weights(), 1), frames)
    expected = live_masks_in_plain_loops(weights(), frames, 100)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_streams_that_take_turns_share_nothing_but_the_level():
    frames = magnitudes(60)
    frames /= np.sqrt(np.mean(frames**2, axis=1, keepdims=True))  # one level
    found = all_masks(LiveBandMasks(weights(), 3), frames)
    for turn in range(3):
        alone = all_masks(LiveBandMasks(weights(), 1), frames[turn::3])
        np.testing.assert_allclose(found[:, turn::3], alone, atol=1e-5)


def test_live_masks_come_at_once_and_do_not_depend_on_the_cut():
    frames = magnitudes(50)
    expected = all_masks(LiveBandMasks(weights(), 3), frames)
    stream = LiveBandMasks(weights(), 3)
    for number, frame in enumerate(frames):
        assert np.array_equal(stream.push(frame[None])[:, 0], expected[:, number])
    for volume in (1e-20, 1e25):
        scaled = all_masks(LiveBandMasks(weights(), 3), frames * np.float32(volume))
        np.testing.assert_allclose(scaled, expected, atol=1e-3)
    silent = all_masks(LiveBandMasks(weights(), 3), np.zeros_like(frames))
    np.testing.assert_allclose(silent.sum(axis=0), 1, atol=1e-5)


@pytest.mark.parametrize(("name", "seconds"), [("denoise", 0.03), ("talk", 0.02)])
@pytest.mark.parametrize("sr", [16000, 44100])
def test_an_impulse_comes_out_within_the_delay(name, seconds, sr):
    """Of a separator that comes with ondes; the sources sum to the mixture, however cut."""
    separator = ondes.Separator(ondes.load(name).with_delay(seconds), sr=sr)
    assert separator.delay <= seconds * sr
    samples = np.zeros(sr // 2, np.float32)
    samples[sr // 4] = 1
    parts, n_in = [], 0
    for first in range(0, len(samples), 100):
        block = samples[first : first + 100]
        n_in += len(block)
        parts.append(sum(separator.push(block).values()))
        assert n_in - sum(map(len, parts)) <= separator.delay
    parts.append(sum(separator.flush().values()))
    np.testing.assert_allclose(np.concatenate(parts), samples, atol=1e-5)


def test_only_networks_of_bands_hear_the_past_alone():
    given = ondes.load("denoise")
    with pytest.raises(ValueError, match="must lie between"):
        given.with_delay(0.5)
    assert given.with_delay(0.03).with_delay(0.05).audio.stft.n_synthesis == 800


# ---- what is heard ----


def test_gains_are_ramps_and_listeners_get_every_source():
    stems = []
    separator = ondes.Separator(ondes.load("denoise").with_delay(0.03), sr=SR)
    mix = LiveMix(separator, {"speech": 0.0, "noise": 0.0}, (stems.append,))
    samples = 0.1 * np.random.default_rng(0).standard_normal((4 * SR, 1)).astype(np.float32)
    blocks = np.split(samples, 400)
    parts = [mix.push(block) for block in blocks[:200]]
    n = sum(map(len, parts))
    mix.gains["noise"] = -np.inf
    heard = np.concatenate([*parts, *(mix.push(block) for block in blocks[200:])])
    speech, noise = (np.concatenate([each[name] for each in stems]) for name in mix.names)
    gain = np.ones((len(heard), 1))
    gain[n : n + 160, 0], gain[n + 160 :] = 1 - np.arange(1, 161) / 160, 0
    np.testing.assert_allclose(heard, speech + gain * noise, atol=1e-6)


def test_waiting_sound_is_whole_silent_where_late_and_never_long():
    rng = np.random.default_rng(0)
    sound = rng.standard_normal((8000, 1)).astype(np.float32)
    waiting = WaitingSound(1, 80, 8000)
    assert not waiting.take(80).any()
    assert waiting.n_missing == 0  # nothing has come yet
    taken = []
    for first in range(0, 4000, 80):
        waiting.put(sound[first : first + 80])
        taken.append(waiting.take(80))
    np.testing.assert_array_equal(np.concatenate(taken), sound[:4000])
    assert not waiting.take(240).any()
    assert waiting.n_missing == 240
    for _ in range(100):  # it catches up: the oldest is left out
        waiting.put(sound[:80])
    assert waiting.n_waiting <= 800
    waiting.take(waiting.n_waiting)
    for _ in range(5):
        waiting.put(sound[:80])
    for _ in range(100 * 60):  # a minute in which too much waits
        waiting.put(sound[:80])
        waiting.take(80)
    assert waiting.n_waiting == 80
    assert waiting.n_missing == 240


# ---- devices ----


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not installed here")
    running = SoundServer(tmp_path_factory.mktemp("server"))
    yield running
    running.close()


@contextlib.contextmanager
def live(server, *arguments, **how):
    """`ondes live`, once it has opened both devices."""
    words = [sys.executable, "-m", "ondes", "live", *as_strings(arguments)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=ENVIRONMENT | server.environment, **streams | how) as process:
        try:
            until = time.monotonic() + PATIENCE_S
            while not (server.is_used() and server.is_used("sink-inputs")):
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


PAGE = Path(__file__).parents[1] / "docs" / "live.md"
NEEDS_PAGE = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")
BETWEEN = ("--input", "voice", "--output", "loudspeaker", "--sr", RATE)


def test_sound_goes_from_the_microphone_to_the_loudspeaker(tmp_path, server):
    """All sources at full gain are the microphone, late by a fixed time, and recorded as such."""
    heard = ["--hear", "speech", "--hear", "noise"]
    folder = tmp_path / "recorded"
    with live(server, *BETWEEN, *heard, "--record", folder, "--json") as process:
        time.sleep(1)
        with server.recorded(tmp_path / "both.raw") as found:
            server.play(clicks(4))
        process.send_signal(signal.SIGTERM)
        out, complaints = process.communicate(timeout=PATIENCE_S)
    facts = json.loads(out)
    assert (process.returncode, facts["delay"], facts["sr"]) == (130, 0.03, RATE)
    assert len(complaints.splitlines()) == 1
    microphone, loudspeaker = found[0].T
    late, likeness = lateness(microphone, loudspeaker)
    # A busy machine has gaps, and then more waits.
    is_busy = facts["missing"] > 0.1
    assert facts["delay"] <= late / RATE < 0.4
    assert likeness > 0.5 or is_busy
    stems = {each: soundfile.read(folder / f"{each}.wav")[0] for each in facts["files"]}
    assert len(stems["input"]) > 4 * RATE
    np.testing.assert_allclose(stems["speech"] + stems["noise"], stems["input"], atol=1e-6)
    assert lateness(clicks(4), stems["input"], len(stems["input"]))[1] > 0.9 or is_busy


def test_a_dictionary_is_learned_while_listening_and_learning_goes_on(tmp_path, server):
    """In a terminal, whose keys change gains and end it."""
    room = tmp_path / "room.ondes"
    hiss = 0.1 * np.random.default_rng(0).standard_normal(4 * RATE)
    seconds = []
    for _ in range(2):
        ours, theirs = pty.openpty()
        with live(server, *BETWEEN, "--learn", room, stdin=theirs, stderr=theirs) as process:
            server.play(hiss)
            for key in (b"2", b"m", b"1", b"+", b"q"):
                os.write(ours, key)
                time.sleep(0.3)
            out, _ = process.communicate(timeout=PATIENCE_S)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # of a terminal whose other side is closed
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
        assert (process.returncode, out.decode().split()) == (0, [str(room)])
        for text in ("muted", "+3 dB", "load", ">2 noise", "ms and"):
            assert text in shown.decode(), text
        learned = ondes.load(room)
        seconds.append(learned.history.seconds)
        assert learned.audio.stft.n_synthesis is not None
        assert learned.learner.forgetting == ondes.HalfLife(6000)
    assert seconds[0] > 2
    assert seconds[1] > seconds[0] + 2


def page_lines(beginning):
    """Lines of the page on live sound."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [each for each in lines if each.startswith(beginning)]


@NEEDS_PAGE
def test_the_virtual_microphone_of_the_page_has_the_sound(tmp_path, server):
    lines = page_lines("pactl load-module")
    modules = [server.control(*shlex.split(line)[1:]).strip() for line in lines]
    assert [each.isdecimal() for each in modules] == [True, True]
    (command,) = page_lines("ondes live --output ondes")
    from_voice = ["--input", "voice", "--sr", RATE, "--hear", "noise"]
    with live(server, *from_voice, *command.split()[2:]):
        time.sleep(1)
        with server.recorded(tmp_path / "clean.raw", "clean", 1) as found:
            server.play(clicks(3))
    late, likeness = lateness(np.pad(clicks(3), (0, RATE)), found[0][:, 0], 3 * RATE)
    assert late > 0
    assert likeness > 0.05  # chance is a hundredth
    for each in reversed(modules):
        server.control("unload-module", each)


@NEEDS_PAGE
def test_the_pipe_of_the_page_goes_from_the_microphone_to_the_loudspeaker(tmp_path, server):
    (line,) = page_lines("parec")
    ours = f'ondes() {{ {sys.executable} -m ondes "$@"; }}'
    places = {"PULSE_SOURCE": "voice", "PULSE_SINK": "loudspeaker"}
    how = {"env": ENVIRONMENT | server.environment | places, "start_new_session": True}
    with subprocess.Popen(["bash", "-c", f"{ours}; {line}"], **how) as process:
        try:
            until = time.monotonic() + PATIENCE_S
            while "pacat" not in server.control("list", "sink-inputs"):
                assert time.monotonic() < until
                time.sleep(0.1)
            with server.recorded(tmp_path / "both.raw") as found:
                server.play(clicks(3))
                time.sleep(1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    microphone, loudspeaker = found[0].T
    late, likeness = lateness(microphone, loudspeaker)
    assert late / RATE >= 0.03
    assert likeness > 0.05


def test_a_device_that_disappears_ends_it_and_the_recording_is_whole(tmp_path):
    """Where the sound server has another device, it moves the streams there: here it has none."""
    if absent := missing():
        pytest.skip(f"{', '.join(absent)} not installed here")
    server, folder = SoundServer(tmp_path), tmp_path / "recorded"
    with contextlib.closing(server):
        module = server.control("load-module", "module-null-sink", "sink_name=leaving").strip()
        how = ["--input", "leaving.monitor", "--output", "leaving", "--record", folder]
        with live(server, *how) as process:
            until = time.monotonic() + PATIENCE_S
            while not any(file.stat().st_size > 44100 * 4 for file in folder.iterdir()):
                assert time.monotonic() < until
                time.sleep(0.05)
            for each in ("module-remap-source", "module-remap-sink", "module-null-sink"):
                server.control("unload-module", each)
            server.control("unload-module", module)
            _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "has gone, or has stopped" in complaints.decode().splitlines()[-1]
    assert soundfile.info(folder / "input.wav").duration > 0.5


def test_devices_are_listed_and_chosen_by_name(server):
    def run(*arguments):
        words = [sys.executable, "-m", "ondes", "live", *arguments]
        how = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
        return subprocess.run(words, env=ENVIRONMENT | server.environment, **how)

    listed = run("--list-devices", "--json")
    found = json.loads(listed.stdout)
    assert "voice" in [name for name, _ in found["inputs"]]
    assert "loudspeaker" in [name for name, _ in found["outputs"]]
    none = run("--input", "voice", "--output", "nowhere")
    assert none.returncode == 1
    assert "none match 'nowhere': choose one of 'both', 'microphone'" in none.stderr
    several = run("--input", "monitor")
    assert several.returncode == 1
    assert "several match 'monitor'" in several.stderr


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--hear", "song"], "'song' is not one of the sources: speech, noise"),
        (["--adapt", "noise"], "--adapt needs dictionaries"),
        (["--learn", "a.ondes", "--hear", "speech", "--hear", "noise"], "that are not heard"),
        (["-d", "absent"], "neither a file nor a model that comes with ondes"),
    ],
)
def test_what_cannot_be_heard_is_refused_before_any_device_opens(tmp_path, how, expected):
    words = [sys.executable, "-m", "ondes", "live", *how]
    done = subprocess.run(words, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert expected in " ".join(done.stderr.split())
