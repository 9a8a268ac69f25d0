"""Noise reduction without an example of the noise, by the command, beside what others use.

    python benchmarks/denoising.py --audio FOLDER [--only ondes rnnoise ...]

FOLDER has speech/asterisk_ru and noise/wesnoth, from the packages of these names: a speaker and
noises that no separator was trained on. Eight noises at each level, 10 s at 16 kHz, and speech
without noise. Writes benchmarks/results/denoising.json and the table of docs/separation.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from kept import KEPT, ROOT
from unseen import SECONDS, SR, read, voice

from ondes.scores import si_sdr

SNRS_DB = (0, 5, 10, 15)
N_NOISES = 8
LONGEST_DELAY, DELAY_STEP = 1200, 8  # samples, of peers that are late
WAYS = {
    "ondes": "`ondes denoise`",
    "rnnoise": "RNNoise (`pyrnnoise`)",
    "webrtc": "WebRTC's suppressor (`webrtc-noise-gain`)",
    "changing": "noisereduce, non-stationary",
    "stationary": "noisereduce, stationary",
}

Pairs = list[tuple[int | None, np.ndarray, np.ndarray]]  # level, clean, noisy


def pairs(audio: Path) -> Pairs:
    """Speech, and the same with noise; None is no noise."""
    speech, n = voice(audio), SECONDS * SR
    noises = [read(path) for path in sorted((audio / "noise/wesnoth").glob("*.ogg"))]
    noises = [np.resize(each, n) for each in noises if len(each) > SR][:N_NOISES]
    found: Pairs = []
    for noise in noises:
        for level in (*SNRS_DB, None):
            clean = speech[len(found) * n % (len(speech) - n) :][:n]
            gain = np.sqrt(np.mean(clean**2) / np.mean(noise**2))
            noisy = clean + (0 if level is None else gain * 10 ** (-level / 20)) * noise
            scale = 0.3 / np.abs(noisy).max()
            found.append((level, scale * clean, scale * noisy))
    return found


# ---- ways ----


def by_ondes(noisy: list[np.ndarray]) -> list[np.ndarray]:
    """The command, with nothing but the files."""
    ondes = str(Path(sys.executable).with_name("ondes"))
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{number:03d}" for number in range(len(noisy))]
        for name, samples in zip(names, noisy, strict=True):
            soundfile.write(Path(folder, f"{name}.wav"), samples, SR, subtype="FLOAT")
        command = [ondes, "denoise", *(f"{name}.wav" for name in names), "-o", "clean/"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return [read(Path(folder, "clean", f"{name}-denoised.wav")) for name in names]


def rnnoise(noisy: np.ndarray) -> np.ndarray:
    import pyrnnoise

    samples = (soxr.resample(noisy, SR, 48000)[None] * 32767).astype(np.int16)
    blocks = pyrnnoise.RNNoise(48000).denoise_chunk(samples, partial=True)
    clean = np.concatenate([block for _, block in blocks], axis=1)[0] / 32767
    return soxr.resample(clean, 48000, SR)


def webrtc(noisy: np.ndarray) -> np.ndarray:
    from webrtc_noise_gain import AudioProcessor

    processor, size = AudioProcessor(0, 2), SR // 100
    samples = (noisy * 32767).astype(np.int16)
    blocks = [samples[at : at + size] for at in range(0, len(samples) - size + 1, size)]
    clean = [np.frombuffer(processor.Process10ms(each.tobytes()).audio, "<i2") for each in blocks]
    return np.concatenate(clean) / 32767


def noisereduce(stationary: bool) -> Callable[[np.ndarray], np.ndarray]:
    def reduce(noisy: np.ndarray) -> np.ndarray:
        import noisereduce

        return noisereduce.reduce_noise(y=noisy, sr=SR, stationary=stationary)

    return reduce


PEERS = {
    "rnnoise": rnnoise,
    "webrtc": webrtc,
    "changing": noisereduce(stationary=False),
    "stationary": noisereduce(stationary=True),
}


# ---- scores ----


def scores(clean: np.ndarray, noisy: np.ndarray, found: np.ndarray, is_late: bool) -> list[float]:
    """SI-SDR and STOI after and before, at the delay with the highest SI-SDR."""
    from pystoi import stoi

    n = min(len(clean), len(found))

    def ratio(delay: int) -> float:
        truth, estimate = clean[: n - delay], found[delay:n]
        return si_sdr(truth - truth.mean(), estimate - estimate.mean())

    delays = range(0, LONGEST_DELAY + 1, DELAY_STEP) if is_late else range(1)
    best = max(delays, key=ratio)
    before = np.array_equal(clean, noisy)
    return [
        ratio(best),
        np.inf if before else si_sdr(clean - clean.mean(), noisy - noisy.mean()),
        stoi(clean[: n - best], found[best:n], SR),
        stoi(clean, noisy, SR),
    ]


def measure(way: str, given: Pairs) -> dict[str, Any]:
    begin = time.perf_counter()
    noisy = [each for *_, each in given]
    found = by_ondes(noisy) if way == "ondes" else list(map(PEERS[way], noisy))
    seconds = time.perf_counter() - begin
    rows: dict[str, Any] = {"times_real_time": round(len(given) * SECONDS / seconds)}
    for level in (*SNRS_DB, None):
        each = np.array(
            [
                scores(clean, mixture, estimate, way != "ondes")
                for (own, clean, mixture), estimate in zip(given, found, strict=True)
                if own == level
            ]
        )
        if level is None:
            kept = each[:, 0]
            rows["clean"] = {"si_sdr": [round(float(f(kept)), 2) for f in (np.median, np.min)]}
            continue
        gain = each[:, 0] - each[:, 1]
        rows[str(level)] = {
            "gain": [round(float(f(gain)), 2) for f in (np.median, np.min)],
            "stoi": [round(float(np.median(each[:, column])), 3) for column in (2, 3)],
        }
    return rows


# ---- the page ----


def table(results: dict[str, Any]) -> str:
    """The measured rows for docs/separation.md."""
    rows, levels = results["rows"], list(map(str, SNRS_DB))
    lines = [
        f"| SI-SDR gained, dB | {' | '.join(f'{level} dB' for level in levels)} "
        f"| speech without noise | STOI at {levels[0]} dB | × real time |",
        "|" + "---|" * (len(levels) + 4),
    ]
    for way, title in WAYS.items():
        if way not in rows:
            continue
        row = rows[way]
        gains = ["{:+.1f} ({:+.1f})".format(*row[level]["gain"]) for level in levels]
        kept = "{:.0f} ({:.0f})".format(*row["clean"]["si_sdr"])
        stoi = f"{row[levels[0]]['stoi'][0]:.2f}"
        lines.append(
            f"| {title} | {' | '.join(gains)} | {kept} | {stoi} | {row['times_real_time']} |"
        )
    first = next(iter(rows.values()))
    lines += [
        "",
        f"Medians over {results['n_noises']} noises, the worst in brackets; a speaker and noises "
        "(weather, water, animals, fires) in no training recording, each way with nothing but the "
        f"recording, 16 kHz, {results['cores']} cores. Speech without noise: SI-SDR of what comes "
        "out, so that higher is less harm. STOI, a measure of intelligibility up to 1, is "
        f"{first[levels[0]]['stoi'][1]:.2f} before. Peers that are late are aligned. Measured by "
        "`benchmarks/denoising.py`.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    kept = KEPT["denoising"]
    rows = kept.read()["rows"] if (ROOT / kept.path).exists() else {}
    recordings = pairs(given.audio)
    for way in given.only:
        rows[way] = measure(way, recordings)
        print(way, rows[way], flush=True)
    ordered = {way: rows[way] for way in WAYS if way in rows}
    about = {"n_noises": len(recordings) // (len(SNRS_DB) + 1), "cores": os.cpu_count()}
    kept.write({**about, "rows": ordered}, given.only)


if __name__ == "__main__":
    main()
