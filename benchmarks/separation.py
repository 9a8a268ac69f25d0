"""Quality of separation, against the size of the dictionaries and the time to learn them.

    python benchmarks/separation.py [--audio FOLDER] [--quick]

Speech and music mixed at 0 dB, and the guitar of four songs against the rest of the band. Every
dictionary is learned from other recordings of the same kind. Writes
benchmarks/results/separation.json and docs/figures/separation.png; with --quick, into out/quick.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]

import peers  # noqa: E402
import race  # noqa: E402
from outputs import Outputs, facts, parse_options  # noqa: E402
from recordings import Frontend, Recordings, samples, shuffled_frames  # noqa: E402

import ondes  # noqa: E402
from ondes.scores import si_sdr  # noqa: E402
from ondes.separation import Sources  # noqa: E402
from ondes.signal.stft import Stft  # noqa: E402

RESULTS = HERE / "results" / "separation.json"
LEARNERS = ("default", "minibatch")
SOURCES = {"speech": ("speech", "music"), "guitar": ("guitar", "rest")}
TITLES = {"speech": "Speech and music at 0 dB", "guitar": "Guitar and the rest of the band"}
FIXED = ("mixture", "oracle")


@dataclass(frozen=True)
class Settings:
    sr: int = 16000
    n_fft: int = 1024
    seconds: float = 10.0  # of each excerpt
    n_excerpts: int = 8  # of each kind of mixture
    components: tuple[int, ...] = (16, 32, 64, 128)  # of each source
    learning_s: tuple[float, ...] = (0.2, 1.0)  # for each dictionary, on one thread
    n_frames: int = 20_000  # to learn from

    @property
    def frontend(self) -> Frontend:
        return Frontend(self.sr, self.n_fft)


QUICK = Settings(seconds=5, n_excerpts=4, components=(16, 64), learning_s=(0.2,), n_frames=5000)


@dataclass(frozen=True)
class Excerpt:
    """A mixture of two, and the names of the training sets of its two dictionaries."""

    kind: str
    truth: np.ndarray  # (2, n_samples)
    training_sets: tuple[str, str]

    @property
    def mixture(self) -> np.ndarray:
        return self.truth.sum(axis=0)


# ---- the sound ----


def spoken_excerpts(recordings: Recordings, settings: Settings) -> Iterator[Excerpt]:
    """Held-out sentences, concatenated, over held-out tracks at the same power."""
    n_samples = round(settings.seconds * settings.sr)
    sentences = [samples(path, settings.sr) for path in recordings.speech(held_out=True)]
    speech = np.concatenate(sentences)
    tracks = recordings.music(held_out=True)
    for number in range(settings.n_excerpts):
        voice = speech[number * n_samples : (number + 1) * n_samples]
        start = round((20 + 20 * (number // len(tracks))) * settings.sr)
        music = samples(tracks[number % len(tracks)], settings.sr)[start : start + n_samples]
        music = music * np.sqrt(np.mean(voice**2) / np.mean(music**2))
        yield Excerpt("speech", np.stack([voice, music]), ("speech", "music"))


def guitar_excerpts(recordings: Recordings, settings: Settings) -> Iterator[Excerpt]:
    """The loudest excerpts of the guitar in each song."""
    n_samples = round(settings.seconds * settings.sr)
    folders = recordings.stems()
    for folder in folders:
        guitar, rest = (samples(folder / name, settings.sr) for name in ("guitar.ogg", "song.ogg"))
        n_pieces = min(len(guitar), len(rest)) // n_samples
        pieces = [each[: n_pieces * n_samples].reshape(-1, n_samples) for each in (guitar, rest)]
        loudest = np.argsort(-np.mean(pieces[0] ** 2, axis=1))
        for piece in loudest[: settings.n_excerpts // len(folders)]:
            truth = np.stack([each[piece] for each in pieces])
            names = (f"guitar without {folder.name}", f"rest without {folder.name}")
            yield Excerpt("guitar", truth, names)


def training_sets(recordings: Recordings, settings: Settings) -> Iterator[tuple[str, np.ndarray]]:
    """Frames to learn from, by name; for a song, always those of the other three."""
    frontend, n_frames = settings.frontend, settings.n_frames
    yield "speech", shuffled_frames(recordings.speech(held_out=False), frontend, n_frames)
    yield "music", shuffled_frames(recordings.music(held_out=False), frontend, n_frames)
    folders = recordings.stems()
    for source, name in (("guitar", "guitar.ogg"), ("rest", "song.ogg")):
        songs = {folder: shuffled_frames([folder / name], frontend) for folder in folders}
        for folder in folders:
            others = [frames for other, frames in songs.items() if other != folder]
            frames = np.concatenate(others)
            order = np.random.default_rng(0).permutation(len(frames))[:n_frames]
            yield f"{source} without {folder.name}", frames[order]


# ---- dictionaries ----


def learned(
    recordings: Recordings, settings: Settings
) -> dict[tuple[str, str, int, float], np.ndarray]:
    """Dictionaries by learner, training set, size and seconds of learning."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder, names = Path(name), []
        for training_set, frames in training_sets(recordings, settings):
            np.save(folder / f"{training_set}.npy", frames)
            names.append(training_set)
        places = [(training_set, size) for training_set in names for size in settings.components]
        for learner in LEARNERS:
            jobs = [
                {"frames": str(folder / f"{training_set}.npy"), "n_frames": None,
                 "n_components": size, "seed": 0, "warm": True,
                 "budget_s": settings.learning_s[-1], "max_passes": None, "plain": False}
                for training_set, size in places
            ]  # fmt: skip
            kept = race.learn(learner, 1, jobs, folder)
            for (training_set, size), watch in zip(places, kept, strict=True):
                for seconds in settings.learning_s:
                    last = np.flatnonzero(watch["seconds"] <= 1.05 * seconds)
                    row = last[-1] if len(last) else 0
                    found[learner, training_set, size, seconds] = watch["dictionaries"][row]
    return found


def sources_of(excerpt: Excerpt, rows: list[np.ndarray], settings: Settings) -> Sources:
    """Any learner's dictionaries, in the same separator."""
    rows = [each / each.sum(axis=1, keepdims=True, dtype=np.float64) for each in rows]
    source_of = np.repeat([0, 1], [len(each) for each in rows])
    dictionary = np.concatenate(rows)
    return Sources(dictionary, source_of, SOURCES[excerpt.kind], settings.sr, Stft(settings.n_fft))


def oracle(excerpt: Excerpt, settings: Settings) -> np.ndarray:
    """The Wiener mask of the true sources' power: no mask of this kind can be much better."""
    stft = Stft(settings.n_fft)
    spectra = [stft.power(source) for source in excerpt.truth]
    mask = spectra[0] / np.maximum(spectra[0] + spectra[1], np.finfo(np.float32).tiny)
    first = stft.inverse(mask * stft.forward(excerpt.mixture), len(excerpt.mixture))
    return np.stack([first, excerpt.mixture - first])


# ---- scores ----


def museval_sdr(truth: np.ndarray, found: np.ndarray) -> list[float]:
    """SDR of BSS eval v4. Only museval's formulas are loaded: the package needs ffmpeg."""
    place = importlib.util.find_spec("museval").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("museval_metrics", Path(place) / "metrics.py")
    metrics = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(metrics)
    shaped = [np.asarray(each, dtype=np.float64)[..., None] for each in (truth, found)]
    return metrics.bss_eval(*shaped, window=np.inf, hop=np.inf)[0][:, 0].tolist()


def separation(recordings: Recordings, settings: Settings) -> dict[str, Any]:
    dictionaries = learned(recordings, settings)
    excerpts = [
        *spoken_excerpts(recordings, settings), *guitar_excerpts(recordings, settings)
    ]  # fmt: skip
    estimates = [
        estimate
        for number, excerpt in enumerate(excerpts)
        for estimate in estimates_of(excerpt, number, dictionaries, settings)
    ]
    # museval takes half a second each, so only what learned for the longest time is measured.
    longest = (None, settings.learning_s[-1])
    measured = [each for each in estimates if each.about["seconds"] in longest]
    with ProcessPoolExecutor() as pool:
        found = pool.map(museval_sdr, [e.truth for e in measured], [e.found for e in measured])
        for estimate, decibels in zip(measured, found, strict=True):
            estimate.about["sdr"] = [round(value, 3) for value in decibels]
    runs = [estimate.about for estimate in estimates]
    return {"settings": asdict(settings), "machine": facts(), "runs": runs}


@dataclass(frozen=True)
class Estimate:
    about: dict[str, Any]  # how it was made, and its scores
    truth: np.ndarray
    found: np.ndarray


def estimates_of(
    excerpt: Excerpt, number: int, dictionaries: dict[Any, np.ndarray], settings: Settings
) -> Iterator[Estimate]:
    """The mixture itself, the oracle's, and every learner's."""

    def estimate(found: np.ndarray, how: str, size: int | None, seconds: float | None) -> Estimate:
        decibels = [si_sdr(*pair) for pair in zip(excerpt.truth, found, strict=True)]
        about = {"kind": excerpt.kind, "excerpt": number, "how": how, "n_components": size,
                 "seconds": seconds, "si_sdr": [round(value, 3) for value in decibels],
                 "sdr": None}  # fmt: skip
        return Estimate(about, excerpt.truth, found)

    yield estimate(np.stack([excerpt.mixture] * 2), "mixture", None, None)
    yield estimate(oracle(excerpt, settings), "oracle", None, None)
    for learner, size, seconds in itertools.product(
        LEARNERS, settings.components, settings.learning_s
    ):
        rows = [dictionaries[learner, name, size, seconds] for name in excerpt.training_sets]
        sources = sources_of(excerpt, rows, settings)
        stems = ondes.separate(excerpt.mixture, sources, sr=settings.sr, n_jobs=-1)
        found = np.stack([stems[name] for name in SOURCES[excerpt.kind]])
        yield estimate(found, learner, size, seconds)


# ---- the page ----


def median_db(results: dict[str, Any], score: str, source: int, **where: Any) -> float | None:
    values = [
        run[score][source]
        for run in results["runs"]
        if run[score] is not None and all(run[key] == value for key, value in where.items())
    ]
    return float(np.median(values)) if values else None


def section(results: dict[str, Any]) -> str:
    settings = results["settings"]
    parts = [
        "## Separation",
        f"Medians over {settings['n_excerpts']} excerpts of {settings['seconds']:g} s at "
        f"{settings['sr']} Hz, window {settings['n_fft']}, in decibels: scale-invariant SDR, and "
        "in brackets the SDR of museval. Dictionaries come from other recordings of the same kind, "
        f"at most {settings['n_frames']:,} frames; of the guitar and the rest of the band, from "
        "the other three songs. K is that of each source; seconds are those of learning each "
        "dictionary on one thread. Both learners' dictionaries are used by the same separator. The "
        "oracle's Wiener mask is computed from the true sources and is the upper limit of masking.",
    ]
    for kind, names in SOURCES.items():
        parts.append(f"**{TITLES[kind]}**\n\n{_table(results, kind, names)}")
    parts.append(
        "![Scale-invariant SDR against the number of components]"
        "(figures/separation.png)"
    )  # fmt: skip
    return "\n\n".join(parts)


def _table(results: dict[str, Any], kind: str, names: tuple[str, str]) -> str:
    settings = results["settings"]
    lines = ["| | K | seconds | " + " | ".join(names) + " |", "|---" * 5 + "|"]
    rows = [(how, None, None) for how in FIXED]
    for learner in LEARNERS:
        rows += [
            (learner, size, seconds)
            for size in settings["components"]
            for seconds in settings["learning_s"]
        ]
    for how, size, seconds in rows:
        where = {"kind": kind, "how": how, "n_components": size, "seconds": seconds}
        cells = []
        for source in (0, 1):
            scale_free = median_db(results, "si_sdr", source, **where)
            plain = median_db(results, "sdr", source, **where)
            cells.append(f"{scale_free:.1f}" + (f" ({plain:.1f})" if plain is not None else ""))
        shown = [_title(how), *("" if each is None else f"{each:g}" for each in (size, seconds))]
        lines.append("| " + " | ".join([*shown, *cells]) + " |")
    return "\n".join(lines)


def _title(how: str) -> str:
    names = {"mixture": "the mixture as it is", "oracle": "oracle Wiener mask"}
    return names.get(how) or peers.CONTESTANTS[how].title


def draw(results: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    settings = results["settings"]
    figure = Figure(figsize=(12, 3.9), layout="constrained", dpi=100)
    every = figure.subplots(1, 4, sharex=True)
    places = [(kind, source) for kind in SOURCES for source in (0, 1)]
    for axes, (kind, source) in zip(every, places, strict=True):
        for how, style in zip(FIXED, (":", "--"), strict=True):
            level = median_db(results, "si_sdr", source, kind=kind, how=how)
            axes.axhline(level, color="black", linestyle=style, linewidth=1.2, label=_title(how))
        for learner, colour in zip(LEARNERS, ("#d55e00", "#0072b2"), strict=True):
            for seconds, style in zip(settings["learning_s"][::-1], ("-", ":"), strict=False):
                where = {"kind": kind, "how": learner, "seconds": seconds}
                levels = [
                    median_db(results, "si_sdr", source, **where, n_components=size)
                    for size in settings["components"]
                ]
                axes.plot(settings["components"], levels, style, color=colour, marker="o",
                          markersize=4, label=f"{_title(learner)}, {seconds:g} s")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(settings["components"], map(str, settings["components"]))
        axes.set_title(f"{SOURCES[kind][source]}\n({TITLES[kind]})", fontsize=10)
        axes.set_xlabel("K, components of each source")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel("SI-SDR in decibels, higher is better")
    handles = every[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    options = parse_options(__doc__)
    outputs = Outputs.quick() if options.quick else replace(Outputs.kept(), results=RESULTS.parent)
    results = separation(Recordings(options.audio), QUICK if options.quick else Settings())
    print(outputs.write("separation", results))
    draw(results, outputs.figures / "separation.png")
    print(section(results))


if __name__ == "__main__":
    main()
