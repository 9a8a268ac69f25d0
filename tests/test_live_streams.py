"""Sound out while sound comes in: pipes on both sides, real processes, signals, early ends."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hostile import (
    ENVIRONMENT,
    SR,
    as_strings,
    noise,
    run,
    sound_bytes,
    tones,
    wait_until,
    write_sound,
)

import ondes
from ondes.signal.pcm import _BYTES, PcmDecoder, RawFormat, from_float
from ondes.signal.recordings import open_blocks

PATIENCE_S = 20.0
SIGNALS = [signal.SIGINT, signal.SIGTERM]
COMMANDS = ["denoise", "separate"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Dictionaries of two sources whose separation is late by 30 ms."""
    folder = tmp_path_factory.mktemp("models")
    for name, samples in {"speech": tones(1, 4), "noise": noise(1, 4)}.items():
        write_sound(folder / f"{name}.wav", samples)
        how = ["-k", "3", "--sr", str(SR), "-j", "1", "--delay", "30ms"]
        done = run("learn", folder / f"{name}.wav", "-o", folder / f"{name}.ondes", *how)
        assert done.returncode == 0, done.stderr
    return folder


def arguments(command, models, given="-", output="-", *more):
    """A command with models, from one stream to another."""
    if command == "denoise":
        how = ["--noise", models / "noise.wav", "-d", models / "speech.ondes"]
    else:
        how = ["-d", models / "speech.ondes", "-d", models / "noise.ondes", "--stem", "speech"]
    return [command, given, *how, "-j", "1", "-o", output, *more]


def in_memory(command, models, samples):
    """What the command should write."""
    speech = ondes.load(models / "speech.ondes")
    if command == "denoise":
        example = ondes.read(models / "noise.wav")[0]
        return ondes.denoise(samples, SR, noise=example, speech=speech)
    both = {"speech": speech, "noise": ondes.load(models / "noise.ondes")}
    return ondes.separate(samples, both, sr=SR)["speech"]


def as_float(samples):
    return samples.astype(np.float32) / 2**15


@contextlib.contextmanager
def piped(words, **how):
    """A program with pipes at its input and output."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | how
    words = [sys.executable, "-m", "ondes", *as_strings(words)]
    with subprocess.Popen(words, env=ENVIRONMENT, bufsize=0, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def take(stream, n_bytes):
    """So many bytes of a pipe, or whatever comes within our patience."""
    data, until = b"", time.monotonic() + PATIENCE_S
    while len(data) < n_bytes and (left := until - time.monotonic()) > 0:
        if select.select([stream], [], [], left)[0]:
            part = os.read(stream.fileno(), n_bytes - len(data))
            if not part:
                break
            data += part
    return data


# ---- what comes out ----


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_gets_what_a_file_would(tmp_path, models, command):
    sound = tones(0, 3)
    with piped(arguments(command, models)) as process:
        out, complaints = process.communicate(sound_bytes(sound), PATIENCE_S)
    assert (process.returncode, complaints) == (0, b"")
    expected = in_memory(command, models, as_float(sound))
    with open_blocks(io.BytesIO(out)) as blocks:
        assert (blocks.sr, blocks.channels, blocks.n_samples) == (SR, 1, None)
        found = np.concatenate(list(blocks))[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("command", COMMANDS)
def test_raw_samples_come_out_as_they_went_in(models, command):
    sound = tones(0, 2)
    raw = ["--raw", f"{SR}:1:s16le"]
    with piped(arguments(command, models, "-", "-", *raw)) as process:
        out, complaints = process.communicate(sound.tobytes(), PATIENCE_S)
    assert (process.returncode, complaints) == (0, b"")
    expected = in_memory(command, models, as_float(sound))
    found = as_float(np.frombuffer(out, "<i2"))
    np.testing.assert_allclose(found, expected, atol=0.6 / 2**15)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_pipe_is_written_to(tmp_path, models, command):
    sound, pipe = tones(0, 2), tmp_path / "pipe"
    os.mkfifo(pipe)
    write_sound(tmp_path / "a.wav", sound)
    with piped(arguments(command, models, tmp_path / "a.wav", pipe)) as process:
        out = pipe.read_bytes()
        _, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaints) == (0, b"")
    assert len(PcmDecoder(io.BytesIO(out), "out", None).read()) == len(sound)


def test_a_rate_that_changes_ends_a_stream_and_what_came_before_is_kept(tmp_path, models):
    """As where a second WAV follows one without a length."""
    sound = tones(0, 2)
    first, second = (bytearray(sound_bytes(sound, rate)) for rate in (SR, 48000))
    first[40:44] = b"\xff" * 4
    written = tmp_path / "out.wav"
    for output in ("-", written):
        with piped(arguments("denoise", models, "-", output)) as process:
            out, complaints = process.communicate(bytes(first + second), PATIENCE_S)
        assert process.returncode == 0
        (line,) = complaints.decode().splitlines()
        assert "standard input: has another WAV after 2.0 s, which is left out" in line
        with open_blocks(io.BytesIO(out) if output == "-" else written) as blocks:
            assert sum(map(len, blocks)) == len(sound)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_another_wav_is_found_wherever_reads_end(size):
    class Slow(io.BytesIO):
        def read(self, n=-1):
            return super().read(min(n, size) if n >= 0 else size)

    data = bytearray(sound_bytes(tones(0, 0.1)))
    data[40:44] = b"\xff" * 4
    decoder = PcmDecoder(Slow(bytes(data + data)), "pipe", None)
    with pytest.warns(RuntimeWarning, match="has another WAV after 0"):
        n = sum(map(len, _blocks(decoder)))
    assert 0 <= n - len(tones(0, 0.1)) < 8


def _blocks(decoder):
    while len(block := decoder.read()):
        yield block


def test_standard_output_that_is_a_file_has_its_length_in_the_header(tmp_path, models):
    sound = tones(0, 2)
    with (
        (tmp_path / "out.wav").open("wb") as file,
        piped(arguments("separate", models), stdout=file) as process,
    ):
        process.communicate(sound_bytes(sound), PATIENCE_S)
    assert soundfile.info(tmp_path / "out.wav").frames == len(sound)


def test_only_the_named_stem_is_written(tmp_path, models):
    write_sound(tmp_path / "a.wav", tones(0, 1))
    done = run(*arguments("separate", models, tmp_path / "a.wav", tmp_path / "out"))
    assert done.returncode == 0
    assert [path.name for path in (tmp_path / "out" / "a").iterdir()] == ["speech.wav"]


@pytest.mark.parametrize("encoding", _BYTES)
def test_encodings_are_the_inverse_of_decoding(encoding):
    samples = np.random.default_rng(0).uniform(-0.99, 0.99, (500, 2)).astype(np.float32)
    data = from_float(samples, encoding)
    layout = RawFormat(SR, 2, encoding)
    decoder = PcmDecoder(io.BytesIO(data), "raw", layout)
    step = 0.0 if encoding[0] == "f" else 2.0 ** (1 - 8 * _BYTES[encoding])
    np.testing.assert_allclose(decoder.read(), samples, atol=max(0.51 * step, 1e-7), rtol=0)
    loud = PcmDecoder(io.BytesIO(from_float(np.array([[2.0, -2.0]]), encoding)), "raw", layout)
    expected = [[2.0, -2.0]] if encoding[0] == "f" else [[1.0, -1.0]]
    np.testing.assert_allclose(loud.read(), expected, atol=1.01 * step)


# ---- while it comes in ----


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("comes_with_ondes", [False, True])
def test_sound_comes_out_within_the_delay(models, command, comes_with_ondes):
    """Without more input, all but the model's delay has come out: nothing waits for a block."""
    size = SR // 100
    raw = ["--raw", f"{SR}:1:f32le"]
    words = arguments(command, models, "-", "-", *raw)
    if comes_with_ondes:
        stem = ["--stem", "speech"] if command == "separate" else []
        words = [command, "-", "-o", "-", "--delay", "30ms", "-j", "1", *stem, *raw]
    sound = as_float(tones(0, 2))
    with piped(words) as process:
        n_in, n_out = 0, 0
        for _ in range(60):
            process.stdin.write(sound[n_in : n_in + size].tobytes())
            n_in += size
            due = n_in - round(0.03 * SR)
            if due > n_out:
                n_out += len(take(process.stdout, 4 * (due - n_out))) // 4
                assert n_out >= due
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("size", [100, 1000])
def test_a_stereo_stream_for_live_sound_waits_for_no_block(models, size):
    """Bit-equal however cut, and late by 30 ms in stereo too."""
    both = {name: ondes.load(models / f"{name}.ondes") for name in ("speech", "noise")}
    sound = np.stack([as_float(tones(0, 4)), as_float(noise(0, 4))], axis=1)
    once = ondes.Separator(both, spatial="auto")
    whole = np.concatenate([once.push(sound)["speech"], once.flush()["speech"]])
    cut = ondes.Separator(both, spatial="auto")
    assert cut.delay <= 0.03 * SR
    parts = []
    for first in range(0, len(sound), size):
        parts.append(cut.push(sound[first : first + size])["speech"])
        assert sum(map(len, parts)) >= min(first + size, len(sound)) - cut.delay
    parts.append(cut.flush()["speech"])
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    alone = ondes.separate(sound, both, sr=SR, spatial="none")["speech"]
    assert np.abs(whole[-SR:] - alone[-SR:]).max() > 1e-3  # the places are used, later on


# ---- early ends ----


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_stops_reading_ends_it_though_the_writer_waits(models, command):
    raw = ["--raw", f"{SR}:1:s16le"]
    with piped(arguments(command, models, "-", "-", *raw)) as process:
        process.stdin.write(tones(0, 1).tobytes())
        assert take(process.stdout, SR) != b""
        process.stdout.close()  # and the input stays open
        assert process.wait(PATIENCE_S) == 1
        (line,) = process.stderr.read().decode().splitlines()
    assert "standard output: was closed by its reader after" in line


def held(pipe):
    """How many bytes a pipe holds."""
    found = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return int.from_bytes(found, sys.byteorder)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_the_reader_stalls_ends_it(models, command, number):
    raw = ["--raw", f"{SR}:1:s16le"]
    with piped(arguments(command, models, "-", "-", *raw)) as process:
        os.set_blocking(process.stdin.fileno(), False)
        sound = tones(0, 60).tobytes()
        until = time.monotonic() + PATIENCE_S
        # Pipes hold 64 KiB: once something has come out, and no more goes in, it waits.
        while select.select([], [process.stdin], [], 0.5)[1] or held(process.stdout) < 2**15:
            process.stdin.write(sound[:4096])
            assert time.monotonic() < until
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 130
        assert len(process.stdout.read()) >= 2**15
        (line,) = process.stderr.read().decode().splitlines()
    assert "interrupted" in line


def is_begun(folder):
    """Whether a second of sound is in an unfinished file."""
    return any(each.stat().st_size > 4 * SR for each in folder.rglob("*.part"))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_the_writer_stalls_keeps_what_is_finished(tmp_path, models, command, number):
    """To a pipe and to a file, which is complete and can be played."""
    raw = ["--raw", f"{SR}:1:s16le"]
    folder = tmp_path / ("out.wav" if command == "denoise" else "out")
    for output in ("-", folder):
        with piped(arguments(command, models, "-", output, *raw)) as process:
            process.stdin.write(tones(0, 2).tobytes())
            if output == "-":
                assert len(take(process.stdout, 3 * SR)) == 3 * SR
            else:
                wait_until(lambda: is_begun(tmp_path))
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 130
            (line,) = process.stderr.read().decode().splitlines()
        assert "interrupted" in line
    (written,) = [folder] if command == "denoise" else folder.glob("*/*.wav")
    assert soundfile.info(written).frames > SR


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["separate", "a.wav", "b.wav", "--stem", "speech"], "one source of one MIX"),
        (["separate", "a.wav"], "choose one of speech, music, effects with --stem"),
        (["separate", "a.wav", "--stem", "song"], "'song' is not one of the sources"),
        (["separate", "a.wav", "--stem", "speech", "--flac"], "--flac does not go with a stream"),
        (["separate", "a.wav", "--stem", "speech", "--json"], "--json does not go with a stream"),
        (["separate", "a.wav", "--stem", "speech", "--filename", "a"], "--filename does not go"),
        (["denoise", "a.wav", "--json"], "leave out --json"),
        (["denoise", "a.wav", "--noise", "b.wav", "--delay", "30ms"], "leave out --delay"),
        (["denoise", "a.wav", "--delay", "3ms"], "must lie between 0.01 and 0.12"),
        (["separate", "a.wav", "--sources", "2", "--delay", "30ms"], "--delay needs a model"),
    ],
)
def test_what_a_stream_cannot_hold_is_refused(tmp_path, how, expected):
    for name in "ab":
        write_sound(tmp_path / f"{name}.wav", tones(0, 1))
    done = run(*how, "-o", "-", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert expected in " ".join(done.stderr.decode().split())


# ---- other programs ----


def needs(*programs):
    missing = [each for each in programs if shutil.which(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(
            "ffmpeg -v error -i in.wav -f wav -",
            "ffmpeg -v error -i - out.flac",
            marks=needs("ffmpeg"),
        ),
        pytest.param("sox in.wav -t wav -", "sox -t wav - out.flac", marks=needs("sox")),
        pytest.param(
            "ffmpeg -v error -i in.wav -f s16le -ac 2 -ar 44100 -",
            "sox -t s16 -r 44100 -c 2 - out.flac",
            marks=needs("ffmpeg", "sox"),
        ),
    ],
)
def test_other_programs_at_both_ends(tmp_path, models, first, last):
    write_sound(tmp_path / "in.wav", tones(0, 2))
    raw = ["--raw", "44100:2:s16le"] if "s16le" in first else []
    words = as_strings([sys.executable, "-m", "ondes", *arguments("denoise", models, "-", "-")])
    words += raw
    line = f"set -o pipefail; {first} | {' '.join(words)} | {last}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    info = soundfile.info(tmp_path / "out.flac")
    assert info.samplerate == (44100 if raw else SR)
    assert info.duration == pytest.approx(2, abs=0.01)


PAGE = Path(__file__).parents[1] / "docs" / "live.md"
LINES = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []


@needs("ffmpeg", "ffplay", "sox")
@pytest.mark.parametrize(
    "line", [each for each in LINES if re.match(r"(ffmpeg|sox) .* \| ondes ", each)]
)
def test_every_pipe_of_the_page_runs(tmp_path, line):
    write_sound(tmp_path / "talk.wav", tones(0, 2))
    to_video = "ffmpeg -v error -i talk.wav -c:a aac talk.mp4"
    ours = f'ondes() {{ {sys.executable} -m ondes "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"set -e -o pipefail; {to_video}; {ours}; {line}"],
        cwd=tmp_path,
        env=ENVIRONMENT | {"SDL_AUDIODRIVER": "dummy"},  # of ffplay
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if not line.endswith(" -"):
        info = soundfile.info(tmp_path / line.split()[-1])
        assert (info.samplerate, info.duration) == (SR, pytest.approx(2, abs=0.1))
