"""Hours of audio through `ondes.learn` while another thread separates: nothing may leak.

    python tests/soak.py --hours 10

The stream is synthetic: tones, noise, silence and jumps of level in random order. Meanwhile another
thread of the same process separates a recording again and again, and must get the same samples each
time. Memory, descriptors, threads and the divergence are measured all the time; the result is
printed, and the exit status is 1 if anything grew or leaked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import ondes
from ondes.demo_scene import make_scene
from ondes.learning.dictionary_learning import LearningProgress
from ondes.signal.audio_writer import write_audio

SR = 22050
RAW = ondes.RawFormat(SR, 1, "s16le")
N_COMPONENTS = 16
SETTINGS = {"sr": SR, "n_fft": 512, "raw": RAW}
SAMPLES_PER_RUN, LEAST_SAMPLES = 1000, 10  # how often memory and the rest are measured
MAX_GROWTH = 0.05  # of resident memory, from the second tenth of the run to the last
# Allocators take minutes of audio to settle: the memory of a shorter run means nothing.
LEAST_HOURS_FOR_MEMORY = 1.0
MAX_DIVERGENCE_RATIO = 2.0  # between the same two tenths: the stream does not change


class SyntheticStream:
    """A binary stream of seconds that were generated once and come in random order."""

    def __init__(self, seconds: float, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._blocks = [_block(kind, self._rng) for kind in range(32)]
        self._bytes_left = 2 * round(seconds * SR)
        self._rest = b""
        self._is_over = False

    def read(self, n: int = -1) -> bytes:
        """At most one second's bytes."""
        if self._is_over:
            return b""
        self._rest = self._rest or self._blocks[self._rng.integers(len(self._blocks))]
        n = min(n if n >= 0 else len(self._rest), len(self._rest), self._bytes_left)
        taken, self._rest = self._rest[:n], self._rest[n:]
        self._bytes_left -= n
        return taken

    def end(self) -> None:
        """Give nothing more, whichever thread reads."""
        self._is_over = True


def _block(kind: int, rng: np.random.Generator) -> bytes:
    """One second: a chord, noise, silence, or a chord that suddenly is forty decibels louder."""
    time = np.arange(SR) / SR
    pitches = rng.uniform(100, 4000, size=3)
    noise = 0.1 * rng.standard_normal(SR)
    chord = 0.2 * np.sin(2 * np.pi * pitches[:, None] * time).sum(axis=0) + 0.01 * noise
    louder = chord * np.where(time < 0.5, 0.01, 1.0)
    sound = (chord, noise, np.zeros(SR), louder)[kind % 4]
    return np.round(32767 * np.clip(sound, -1, 1)).astype("<i2").tobytes()


class Separations(threading.Thread):
    """Separates one recording again and again; `failure` says what went wrong, if anything."""

    def __init__(self, path: Path, models: dict[str, ondes.Dictionary]) -> None:
        super().__init__(daemon=True)
        self._path, self._models = path, models
        self._asked_to_stop = threading.Event()
        self._expected = self._digest()
        self.count, self.failure = 0, ""

    def run(self) -> None:
        """Until stopped, or until the samples differ."""
        while not self._asked_to_stop.is_set() and not self.failure:
            try:
                if self._digest() != self._expected:
                    self.failure = f"separation {self.count} gave other samples than the first"
            except Exception as error:  # a thread's failure must be reported
                self.failure = f"separation {self.count} raised {error!r}"
            self.count += 1

    def stop(self) -> None:
        """Wait until the current one is done."""
        self._asked_to_stop.set()
        self.join()

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for block in ondes.separate_file(self._path, self._models):
            for samples in block.values():
                digest.update(samples.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Sample:
    """The process at one moment of the stream; the divergence is that since the last sample."""

    hours: float
    rss_mib: float
    n_descriptors: int
    n_threads: int
    divergence: float


def sample(hours: float, divergence: float) -> Sample:
    """Measure this process."""
    n_pages = int(Path("/proc/self/statm").read_text().split()[1])
    rss = n_pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    own = Path("/proc/self")
    n_descriptors, n_threads = (len(list((own / what).iterdir())) for what in ("fd", "task"))
    return Sample(hours, rss, n_descriptors, n_threads, divergence)


def _sample_at_rest(n_threads: int, last: Sample) -> Sample:
    """A thread that was joined stays in the system's list for a moment."""
    for _ in range(100):
        after = sample(last.hours, last.divergence)
        if after.n_threads <= n_threads:
            break
        time.sleep(0.02)
    return after


def soak(hours: float, seconds: float = math.inf) -> dict[str, object]:
    """Learn from so many hours of audio, or for so many seconds by the clock, and judge."""
    with tempfile.TemporaryDirectory() as folder:
        scene = make_scene(3.0, SR)
        path = Path(folder, "mixture.wav")
        write_audio(path, [scene.mixture], SR)
        models = {name: _learned(SyntheticStream(20, seed), seed) for seed, name in enumerate("ab")}
        separations = Separations(path, models)
        before = sample(0.0, 0.0)
        separations.start()
        began = time.monotonic()
        samples = _stream(hours, began + seconds)
        took = time.monotonic() - began
        separations.stop()
        after = _sample_at_rest(before.n_threads, samples[-1])
    return {
        "hours": after.hours,
        "seconds": took,
        "separations": separations.count,
        "descriptors_leaked": after.n_descriptors - before.n_descriptors,
        "threads_leaked": after.n_threads - before.n_threads,
        **_judged(samples, after, before, separations.failure),
        "samples": [asdict(each) for each in samples],
    }


def _learned(stream: SyntheticStream, seed: int) -> ondes.Dictionary:
    return ondes.learn(stream, N_COMPONENTS, random_state=seed, **SETTINGS)


def _stream(hours: float, end: float) -> list[Sample]:
    samples: list[Sample] = []
    stream = SyntheticStream(3600 * hours, seed=7)

    last = (0, 0.0)

    def look(progress: LearningProgress) -> None:
        nonlocal last
        done = progress.seconds_done / 3600
        if not samples or done >= samples[-1].hours + hours / SAMPLES_PER_RUN:
            now = progress.n_frames, progress.divergence
            samples.append(sample(done, _divergence_between(last, now)))
            last = now
        if time.monotonic() > end:
            stream.end()

    ondes.learn(stream, N_COMPONENTS, progress=look, **SETTINGS)
    if len(samples) < LEAST_SAMPLES:
        raise SystemExit("The run was too short to judge; give it more hours or seconds.")
    return samples


def _divergence_between(last: tuple[int, float], now: tuple[int, float]) -> float:
    """The mean of the frames in between: the average so far weighs frame s of t by s / t."""
    (n_last, average_last), (n_now, average_now) = last, now
    if n_now == n_last:
        return average_now
    total = n_now**2 * average_now - n_last**2 * average_last
    return total / (n_now**2 - n_last**2)


def _judged(
    samples: list[Sample], after: Sample, before: Sample, failure: str
) -> dict[str, object]:
    tenth = len(samples) // 10
    early, late = samples[tenth : 2 * tenth], samples[-tenth:]
    rss = [statistics.median(each.rss_mib for each in part) for part in (early, late)]
    divergence = [statistics.median(each.divergence for each in part) for part in (early, late)]
    wrong = [failure] if failure else []
    if after.hours >= LEAST_HOURS_FOR_MEMORY and rss[1] > (1 + MAX_GROWTH) * rss[0]:
        wrong.append(f"memory grew from {rss[0]:.1f} to {rss[1]:.1f} MiB")
    if after.n_descriptors > before.n_descriptors:
        wrong.append(f"{after.n_descriptors - before.n_descriptors} descriptors leaked")
    if after.n_threads > before.n_threads:
        wrong.append(f"{after.n_threads - before.n_threads} threads were left over")
    if not all(0 < each.divergence < math.inf for each in samples):
        wrong.append("the divergence is not a positive number")
    elif divergence[1] > MAX_DIVERGENCE_RATIO * divergence[0]:
        wrong.append(f"the divergence grew from {divergence[0]:.3f} to {divergence[1]:.3f}")
    return {"rss_mib": rss, "divergence": divergence, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=10.0, help="of synthetic audio")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument(
        "--json", type=Path, default=Path("build/soak.json"), help="where all figures go"
    )
    given = parser.parse_args()
    result = soak(given.hours, given.seconds)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(result, indent=1) + "\n")
    (early, late), (was, is_now) = result["rss_mib"], result["divergence"]
    print(
        f"{result['hours']:.2f} h of audio in {result['seconds']:.0f} s, "
        f"{result['separations']} separations beside it; resident memory {early:.1f} MiB in the "
        f"second tenth and {late:.1f} MiB in the last ({late / early - 1:+.1%}); "
        f"leaked: {result['descriptors_leaked']} descriptors, {result['threads_leaked']} threads; "
        f"divergence {was:.3f} and {is_now:.3f}"
    )
    for what in result["wrong"]:
        print(f"failed: {what}")
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
