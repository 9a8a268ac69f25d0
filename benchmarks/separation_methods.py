"""The methods that benchmarks/separation.py compares: each learns once, then separates mixtures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from separation_scenes import SR, Condition

import ondes
from ondes.nmf.divergence import BetaDivergence
from ondes.scores import si_sdr
from ondes.separation import Sources
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.batches import frame_batches
from ondes.signal.recordings import find_recordings
from ondes.signal.stft import Stft

Stems = dict[str, np.ndarray]
Separate = Callable[[np.ndarray], Stems]

AUDIO = AudioSettings(SR, Stft(3840, 960), 60.0, "magnitude", 0.45 * SR)  # as `ondes learn` has it
N_COMPONENTS = 128
PEER_FRAMES = 12_000  # scikit-learn holds all of them
PEER_SPARSITY = (0.0, 2.0)  # the better one counts
N_FREE = 8


@dataclass(frozen=True)
class Budget:
    """How long training may take, and where."""

    minutes: float = 2.0
    device: str = "cpu"
    n_updates: int | None = None


def folders(condition: Condition) -> dict[str, str]:
    return {name: str(folder) for name, folder in condition.training.items()}


# ---- what ondes does ----


def dictionaries(condition: Condition, seed: int, _: Budget) -> Separate:
    models = _learned(condition, seed)
    return lambda mixture: ondes.separate(mixture, models, sr=SR)


def adapted(condition: Condition, seed: int, _: Budget) -> Separate:
    models = _learned(condition, seed)
    return lambda mixture: ondes.separate(mixture, models, sr=SR, adapt=condition.names[1])


def free(condition: Condition, seed: int, _: Budget) -> Separate:
    """The first source is known, the other one is learned from the mixture."""
    first, second = condition.names
    models = {first: ondes.learn(folders(condition)[first], random_state=seed)}

    def separate(mixture: np.ndarray) -> Stems:
        return ondes.separate(mixture, models, sr=SR, n_free=N_FREE, rest=second, random_state=seed)

    return separate


def trained(condition: Condition, seed: int, budget: Budget) -> Separate:
    separator = ondes.train(
        folders(condition),
        minutes=budget.minutes,
        n_updates=budget.n_updates,
        device=budget.device,
        random_state=seed,
    )
    return lambda mixture: ondes.separate(mixture, separator, sr=SR)


def _learned(condition: Condition, seed: int) -> dict[str, Any]:
    return {
        name: ondes.learn(folder, random_state=seed) for name, folder in folders(condition).items()
    }


# ---- other dictionaries in the same separator ----


def minibatch(condition: Condition, seed: int, _: Budget) -> Separate:
    from sklearn.decomposition import MiniBatchNMF

    def learn(frames: np.ndarray) -> np.ndarray:
        settings = {"init": "random", "beta_loss": "kullback-leibler", "max_iter": 20}
        model = MiniBatchNMF(N_COMPONENTS, random_state=seed, batch_size=1024, **settings)
        return model.fit(frames).components_

    return _peer(condition, seed, learn)


def batch(condition: Condition, seed: int, _: Budget) -> Separate:
    from sklearn.decomposition import NMF

    def learn(frames: np.ndarray) -> np.ndarray:
        settings = {"init": "random", "solver": "mu", "beta_loss": "kullback-leibler"}
        model = NMF(N_COMPONENTS, random_state=seed, max_iter=30, **settings)
        return model.fit(frames).components_

    return _peer(condition, seed, learn)


def multiplicative(condition: Condition, seed: int, _: Budget) -> Separate:
    """Lee and Seung's updates as they are written, on as many frames as a minute has."""

    def learn(frames: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(seed)
        frames = frames[:1000]
        rows = frames[rng.permutation(len(frames))[:N_COMPONENTS]] + 0.1
        found = np.ones((len(frames), len(rows)), np.float32)
        for _ in range(60):
            found *= (frames / (found @ rows + 1e-6)) @ rows.T / rows.sum(axis=1)
            rows *= found.T @ (frames / (found @ rows + 1e-6)) / found.sum(axis=0)[:, None]
        return rows

    return _peer(condition, seed, learn)


def _peer(condition: Condition, seed: int, learn: Callable[[np.ndarray], np.ndarray]) -> Separate:
    rows = []
    for folder in condition.training.values():
        frames = np.concatenate(list(frame_batches(find_recordings([folder]), AUDIO, 1000)))
        frames = frames[np.random.default_rng(seed).permutation(len(frames))[:PEER_FRAMES]]
        found = learn(frames / frames.mean(axis=1, keepdims=True)).astype(np.float64)
        found = found[found.any(axis=1)]
        rows.append(found / found.sum(axis=1, keepdims=True))
    source_of = np.repeat([0, 1], [len(each) for each in rows])
    divergence = BetaDivergence.of("kullback-leibler")
    every = [
        Sources(np.concatenate(rows), source_of, condition.names, AUDIO, divergence, sparsity)
        for sparsity in PEER_SPARSITY
    ]
    mixtures = [sum(truth.values()) for truth in condition.excerpts()]
    truths = list(condition.excerpts())

    def mean_score(sources: Sources) -> float:
        scores = []
        for truth, mixture in list(zip(truths, mixtures, strict=True))[::4]:
            stems = ondes.separate(mixture, sources, sr=SR)
            scores += [si_sdr(truth[name], stems[name]) for name in condition.names]
        return float(np.mean(scores))

    best = max(every, key=mean_score)  # chosen on the test itself: in the peer's favour
    return lambda mixture: ondes.separate(mixture, best, sr=SR)


# ---- others ----


def gru(condition: Condition, seed: int, budget: Budget) -> Separate:
    from separation_gru import train_gru

    return train_gru(condition, seed, budget)


def hpss(condition: Condition, seed: int, _: Budget) -> Separate:
    """Median filtering (Fitzgerald 2010) with librosa's defaults; the better assignment counts."""
    from scipy.ndimage import median_filter

    stft = Stft(2048, 512)

    def separate(mixture: np.ndarray) -> Stems:
        spectra = stft.forward(mixture.astype(np.float32))
        magnitude = np.abs(spectra)
        harmonic = median_filter(magnitude, size=(31, 1), mode="reflect") ** 2
        percussive = median_filter(magnitude, size=(1, 31), mode="reflect") ** 2
        mask = harmonic / np.maximum(harmonic + percussive, 1e-20)
        first = stft.inverse(mask * spectra, len(mixture))
        return {"harmonic": first, "percussive": mixture - first}

    def mean_score(names: tuple[str, str]) -> float:
        scores = []
        for truth in list(condition.excerpts())[::4]:
            stems = separate(sum(truth.values()))
            scores += [
                si_sdr(truth[n], stems[p]) for n, p in zip(condition.names, names, strict=True)
            ]
        return float(np.mean(scores))

    parts = max((("harmonic", "percussive"), ("percussive", "harmonic")), key=mean_score)

    def named(mixture: np.ndarray) -> Stems:
        stems = separate(mixture)
        return {name: stems[part] for name, part in zip(condition.names, parts, strict=True)}

    return named


def blind(condition: Condition, seed: int, _: Budget) -> Separate:
    """Sources found in the mixture itself; `best_assignment` names them."""
    from ondes.separation.discovery import discover_sources

    def separate(mixture: np.ndarray) -> Stems:
        found = discover_sources(mixture, 2, sr=SR, random_state=seed)
        stems = ondes.separate(mixture, found, sr=SR)
        return dict(zip(condition.names, stems.values(), strict=True))

    return separate


def best_assignment(truth: Stems, stems: Stems) -> Stems:
    """The stems under the names that fit them best."""
    names = list(truth)
    every = [dict(zip(order, stems.values(), strict=True)) for order in permutations(names)]
    return max(every, key=lambda each: sum(si_sdr(truth[name], each[name]) for name in names))


def unprocessed(condition: Condition, seed: int, _: Budget) -> Separate:
    return lambda mixture: dict.fromkeys(condition.names, mixture)


METHODS: dict[str, tuple[str, Callable[[Condition, int, Budget], Separate]]] = {
    "mixture": ("the mixture as it is", unprocessed),
    "dictionaries": ("`ondes learn`, both sources", dictionaries),
    "adapted": ("… with `--adapt`", adapted),
    "free": ("`ondes learn`, first source; `--free 8`", free),
    "trained": ("`ondes train`", trained),
    "minibatch": ("scikit-learn `MiniBatchNMF`, same separator", minibatch),
    "batch": ("scikit-learn `NMF`, same separator", batch),
    "multiplicative": ("plain multiplicative updates, same separator", multiplicative),
    "gru": ("recurrent mask network (GRU), same mixtures and time", gru),
    "blind": ("`--sources 2`, best assignment of each excerpt", blind),
    "hpss": ("harmonic and percussive parts, best assignment", hpss),
}
SEEDLESS = ("mixture", "hpss")
NEED_TRAINING = ("trained", "gru")


def oracle(truth: Stems) -> Stems:
    """The Wiener mask of the true sources, window 2048: what masking can reach, about."""
    stft = Stft(2048, 512)
    mixture = sum(truth.values())
    powers = [np.abs(stft.forward(each)) ** 2 for each in truth.values()]
    total = np.maximum(sum(powers), np.finfo(np.float32).tiny)
    spectra = stft.forward(mixture)
    stems = [stft.inverse(power / total * spectra, len(mixture)) for power in powers]
    return dict(zip(truth, stems, strict=True))


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = act()
    return found, time.perf_counter() - begin
