"""How well sources are separated, on mixtures of recordings of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.learning.separator_training.pools import FULL_SCALE, SamplePool
from ondes.models.model import Model
from ondes.scores import si_sdr
from ondes.separation.separator import separate
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.recordings import find_recordings

__all__ = ["score_separation"]

SILENT, SCORED_LEVEL = 1e-4, 0.1  # mean square roots


def score_separation(
    separator: Model,
    sources: Mapping[str, Any],
    *,
    n_mixtures: int = 24,
    seconds: float = 10.0,
    random_state: int = 0,
    backend: str = "auto",
    device: str | None = None,
    n_jobs: int | None = None,
) -> dict[str, NDArray[np.float64]]:
    """How well mixtures are separated; give recordings that the models never heard.

    Parameters
    ----------
    separator : Sources, TrainedSeparator or another model of several sources
    sources : mapping of str to str, Path, or iterable of these
        The files, folders and globs of each source.
    n_mixtures : int
        How many mixtures to make, all sources at the same level; fewer if the recordings are short.
    seconds : float
        Length of each.
    random_state : int
        Decides which parts of the recordings are used.
    backend, device, n_jobs
        As in `OnlineNMF`.

    Returns
    -------
    dict of str to array of shape (n_mixtures,)
        SI-SDR of each source in decibels; an unseparated mixture of two has about zero.

    Raises
    ------
    ValueError
        If the names are not those of the sources, or there is too little audio.
    FileError
        If recordings cannot be used.

    Examples
    --------
    >>> talk = ondes.load("talk.ondes")  # doctest: +SKIP
    >>> score_separation(talk, {"speech": "lectures/", "music": "records/"})  # doctest: +SKIP
    """
    if set(sources) != set(separator.names):
        wanted = " ".join(f"{name}=FILES" for name in separator.names)
        raise ValueError(
            f"The separator was trained for {', '.join(separator.names)}; give recordings of each: "
            f"{wanted}."
        )
    if n_mixtures < 1 or not seconds > 0:
        raise ValueError("n_mixtures and seconds must be positive.")
    compute = {"backend": backend, "device": device, "n_jobs": n_jobs}
    examples = {
        name: _examples(name, sources[name], separator.audio, n_mixtures, seconds, random_state)
        for name in separator.names
    }
    ratios: dict[str, list[float]] = {name: [] for name in separator.names}
    for truths in zip(*examples.values(), strict=False):
        stems = separate(sum(truths), separator, sr=separator.audio.sr, **compute)
        for name, truth in zip(separator.names, truths, strict=True):
            ratios[name].append(si_sdr(truth, stems[name]))
    return {name: np.array(each) for name, each in ratios.items()}


def _examples(
    name: str, inputs: Any, audio: AudioSettings, n_examples: int, seconds: float, seed: int
) -> list[NDArray[np.float32]]:
    """Parts of a source's recordings, none of them silent, all of one level."""
    given = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    n_samples = round(seconds * audio.sr)
    # Twice as much, since some may be silent.
    pool = SamplePool(find_recordings(given), audio, seed, seconds=2 * n_examples * seconds)
    pool.close()
    found: list[NDArray[np.float32]] = []
    for start in range(0, len(pool.samples) - n_samples + 1, n_samples):
        part = pool.samples[start : start + n_samples].astype(np.float32) / np.float32(FULL_SCALE)
        level = float(np.sqrt(np.mean(np.square(part))))
        if level > SILENT:
            found.append(part * np.float32(SCORED_LEVEL / level))
    if not found:
        raise ValueError(
            f"The recordings of {name!r} have no {seconds:g} s of uninterrupted sound; give more."
        )
    order = np.random.default_rng(seed).permutation(len(found))[:n_examples]
    return [found[number] for number in order]
