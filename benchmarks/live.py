"""Live sound: what each delay costs in decibels and in load, and how late devices make it.

    python benchmarks/live.py --audio FOLDER
    python benchmarks/live.py --devices [--seconds 3600] [--beside]

FOLDER has speech/asterisk_ru, music/ufoai and noise/wesnoth, from the packages of these names: a
speaker, music and noises that the separators were not trained on; RNNoise, from `make peers`, is
measured beside them where it is installed. With --devices, `ondes live` runs
on a sound server without hardware (tests/sound_server.py says what that needs), for so many seconds
with each length of the buffers, --beside another process that is always busy. Writes
benchmarks/results/live.json and the table of docs/live.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from kept import KEPT  # noqa: E402
from unseen import SECONDS, SR, excerpts, read, voice  # noqa: E402

import ondes  # noqa: E402
from ondes.scores import si_sdr  # noqa: E402

DELAYS_MS = (15, 30, 60, 120, None)  # None: a whole recording, with what comes after
SNRS_DB = (0, 10)
N_NOISES = 8
DEVICE_SR, LOAD_S = 48000, 20
BUFFERS_MS = (10, 20)
RNNOISE_BLOCK_MS = 10  # gathered before anything comes out
TITLES = {"talk": "`talk`", "denoise": "`denoise`", "dictionaries": "two dictionaries of 128"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio", type=Path)
    parser.add_argument("--devices", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--beside", action="store_true")
    given = parser.parse_args()
    kept = KEPT["live"]
    results = kept.read() if (HERE.parent / kept.path).exists() else {}
    if given.audio:
        results["separators"] = [
            row for delay in DELAYS_MS for row in _separators(given.audio, delay)
        ]
        results["rnnoise"] = _rnnoise(given.audio)
        kept.write(results, ["separators"])
    if given.devices:
        results["devices"] = [_device(buffer, given.seconds, given.beside) for buffer in BUFFERS_MS]
        kept.write(results, ["devices"])


def _separators(audio: Path, delay_ms: int | None) -> Iterator[dict[str, Any]]:
    """Decibels and load with one delay."""
    for name in ("talk", "denoise"):
        model = ondes.load(name)
        if delay_ms is not None:
            model = model.with_delay(delay_ms / 1000)
        row: dict[str, Any] = {"model": name, "delay_ms": delay_ms}
        row |= _separated(audio, model) if name == "talk" else _cleaned(audio, model)
        row |= {} if delay_ms is None else _load(model)
        print(row, flush=True)
        yield row
    if delay_ms == 30:
        rng = np.random.default_rng(0)
        both = {
            each: ondes.learn(0.1 * rng.standard_normal(60 * SR).astype(np.float32), delay=0.03)
            for each in ("speech", "music")
        }
        yield {"model": "dictionaries", "delay_ms": delay_ms, **_load(both)}


def _separated(audio: Path, model: Any) -> dict[str, float]:
    """Medians of the SI-SDR over the excerpts of benchmarks/unseen.py."""
    scores: dict[str, list[float]] = {"speech": [], "music": []}
    for truth in excerpts(audio):
        stems = ondes.separate(sum(truth), model, sr=SR)
        for name, samples in zip(scores, truth, strict=True):
            scores[name].append(_si_sdr(samples, stems[name]))
    return {name: round(float(np.median(each)), 2) for name, each in scores.items()}


def _cleaned(audio: Path, model: Any) -> dict[str, Any]:
    """Medians of what noise reduction adds to the SI-SDR of speech, for each level of the noise."""
    gained: dict[str, list[float]] = {}
    for level, speech, noisy in _in_noise(audio):
        clean = ondes.denoise(noisy, SR, speech=model)
        gained.setdefault(level, []).append(_si_sdr(speech, clean) - _si_sdr(speech, noisy))
    return {level: round(float(np.median(gains)), 2) for level, gains in gained.items()}


def _rnnoise(audio: Path) -> dict[str, Any] | None:
    """The same of RNNoise, which has a delay of its own."""
    try:
        import pyrnnoise  # noqa: F401
    except ImportError:
        print("RNNoise is not installed here: make peers", flush=True)
        return None
    from denoising import rnnoise
    from sound_server import lateness

    gained: dict[str, list[float]] = {}
    late = []
    for level, speech, noisy in _in_noise(audio):
        clean = rnnoise(noisy)
        n = min(len(speech), len(clean))
        delay, _ = lateness(speech[:n], clean[:n], SR // 5)
        late.append(delay)
        gain = _si_sdr(speech[: n - delay], clean[delay:n]) - _si_sdr(speech, noisy)
        gained.setdefault(level, []).append(gain)
    row: dict[str, Any] = {k: round(float(np.median(gains)), 2) for k, gains in gained.items()}
    row["late_ms"] = round(1000 * float(np.median(late)) / SR) + RNNOISE_BLOCK_MS
    print("rnnoise", row, flush=True)
    return row


def _in_noise(audio: Path) -> Iterator[tuple[str, Any, Any]]:
    """Speech, and the same with noise, for each level."""
    speaker = voice(audio)
    n = SECONDS * SR
    noises = [read(path) for path in sorted((audio / "noise/wesnoth").glob("*.ogg"))]
    noises = [np.resize(each, n) for each in noises if len(each) > SR][:N_NOISES]
    for snr in SNRS_DB:
        for number, noise in enumerate(noises):
            speech = speaker[number * n :][:n]
            level = np.sqrt(np.mean(speech**2) / np.mean(noise**2)) * 10 ** (-snr / 20)
            yield f"gain_at_{snr}", speech, speech + level * noise


def _si_sdr(truth: Any, found: Any) -> float:
    return si_sdr(truth - truth.mean(), found - found.mean())


def _load(model: Any) -> dict[str, float]:
    """Processor time of a stream at 48 kHz in blocks of 10 ms, on one core."""
    separator = ondes.Separator(model, sr=DEVICE_SR, compute=ondes.Compute(n_jobs=1))
    rng = np.random.default_rng(0)
    size, taken = DEVICE_SR // 100, []
    for _ in range(LOAD_S * 100):
        block = 0.1 * rng.standard_normal(size).astype(np.float32)
        begin = time.thread_time()
        separator.push(block)
        taken.append(time.thread_time() - begin)
    return {
        "late_ms": round(1000 * separator.delay / DEVICE_SR, 2),
        "load": round(sum(taken) / LOAD_S, 4),
        "longest_ms": round(1000 * max(taken[100:]), 2),
    }


# ---- devices ----


def _device(buffer_ms: int, seconds: float, beside: bool) -> dict[str, Any]:
    """`ondes live` between a microphone and a loudspeaker on one clock."""
    from sound_server import RATE, SoundServer, clicks, lateness

    busy = [sys.executable, "-c", "while True: pass"]
    words = [sys.executable, "-m", "ondes", "live", "--input", "voice", "--output", "loudspeaker"]
    words += ["--sr", str(RATE), "--buffer", f"{buffer_ms}ms", "--hear", "speech"]
    words += ["--hear", "noise", "--json"]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        server = SoundServer(name)
        stack.callback(server.close)
        if beside:
            stack.callback(subprocess.Popen(busy).kill)
        process = subprocess.Popen(
            words, env=os.environ | server.environment, stdout=subprocess.PIPE
        )
        stack.callback(process.kill)
        while not (server.is_used() and server.is_used("sink-inputs")):
            time.sleep(0.1)
        end, late, likeness = time.monotonic() + seconds, [], []
        while time.monotonic() < end:
            with server.recorded(Path(name, "both.raw")) as found:
                server.play(clicks(5))
            place, how_like = lateness(*found[0].T)
            late.append(1000 * place / RATE)
            likeness.append(how_like)
            time.sleep(min(60.0, max(0.0, end - time.monotonic() - 8)))
        process.send_signal(signal.SIGTERM)
        facts = json.loads(process.communicate()[0])
    row = {
        "buffer_ms": buffer_ms,
        "beside": beside,
        "seconds": round(facts["seconds"]),
        "late_ms": [round(min(late), 1), round(float(np.median(late)), 1), round(max(late), 1)],
        "likeness": round(float(min(likeness)), 3),
        "load": round(facts["load"], 4),
        "missing_ms": round(1000 * facts["missing"]),
        "left_out_ms": round(1000 * facts["left_out"]),
        "n_overflows": facts["n_overflows"],
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(row, flush=True)
    return row


# ---- the page ----


def table(results: dict[str, Any]) -> str:
    """The measured tables of docs/live.md."""
    tables = {"separators": _table_of_delays, "devices": _table_of_devices}
    said = ["\n".join(write(results)) for name, write in tables.items() if results.get(name)]
    return "\n\n".join([*said, "Measured by `benchmarks/live.py`."])


def _table_of_delays(results: dict[str, Any]) -> list[str]:
    rows = {(row["model"], row["delay_ms"]): row for row in results["separators"]}
    lines = [
        "| late by | `talk`: speech, music | load | `denoise`: gain at 0 and 10 dB | load |",
        "|---|---|---|---|---|",
    ]
    for delay in DELAYS_MS:
        talk, clean = rows["talk", delay], rows["denoise", delay]
        said = "a whole recording, offline" if delay is None else f"{delay} ms"
        loads = [f"{100 * each['load']:.0f} %" if "load" in each else "" for each in (talk, clean)]
        gains = ", ".join(f"{clean[f'gain_at_{snr}']:.1f} dB" for snr in SNRS_DB)
        both = f"{talk['speech']:.1f}, {talk['music']:.1f} dB"
        lines.append(f"| {said} | {both} | {loads[0]} | {gains} | {loads[1]} |")
    if peer := results.get("rnnoise"):
        gains = ", ".join(f"{peer[f'gain_at_{snr}']:.1f} dB" for snr in SNRS_DB)
        lines.append(f"| RNNoise, {peer['late_ms']} ms | | | {gains} | |")
    longest = max(row["longest_ms"] for row in results["separators"] if "load" in row)
    dictionaries = rows["dictionaries", 30]
    return [
        *lines,
        "",
        "Load is processor time of one core, at 48 kHz in mono and blocks of 10 ms; the longest "
        f"block took {longest:.0f} ms. Two dictionaries of 128 components at 30 ms take "
        f"{100 * dictionaries['load']:.0f} %. Decibels are medians: SI-SDR of 24 mixtures of "
        f"speech and music at 0 dB, and what noise reduction adds to the SI-SDR of speech in "
        f"{N_NOISES} noises; the speaker, the music and the noises are in no training recording.",
    ]


def _table_of_devices(results: dict[str, Any]) -> list[str]:
    devices = results["devices"]
    lines = [
        "| buffers | from microphone to loudspeaker | load | gaps | sound |",
        "|---|---|---|---|---|",
    ]
    for row in devices:
        sound = f"{row['seconds'] / 60:.1f} min"
        gaps = f"{row['missing_ms']} ms"
        lines.append(
            f"| {row['buffer_ms']} ms | {row['late_ms'][1]:.0f} ms | {100 * row['load']:.0f} % "
            f"| {gaps} | {sound} |"
        )
    beside = " beside a process that is always busy" if devices[0]["beside"] else ""
    return [
        *lines,
        "",
        f"`ondes live` on a sound server without hardware{beside}: medians of the delay between "
        "both sides, by correlation of clicks.",
    ]


if __name__ == "__main__":
    main()
