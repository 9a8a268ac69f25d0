"""Learning that lives on a card: samples go there, and a dictionary comes back.

What `ondes.learning` does with a model of `backend="torch"`, without a frame ever returning to the
host: samples cross in rounds, as they were decoded; Fourier transform, mixing, levels and every
update of the dictionary happen on the device. The next round crosses while this one is learned
from, so what is heard may be far larger than the device's memory. It is the same learning: the
same batches in the same order, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ondes.card.course import Course
from ondes.card.frames import FrameMaker, MixedFrames
from ondes.card.rounds import DeviceRounds, RoundsInMemory
from ondes.lessons import SEED_FRAMES, SHUFFLED_BYTES, Failures, LearningProgress, run
from ondes.model_file import AudioSettings
from ondes.nmf import parameters
from ondes.nmf.backends.devices import ready, torch
from ondes.nmf.divergence import Array
from ondes.nmf.estimator import OnlineISNMF

__all__ = ["Course", "DeviceRounds", "begin", "learn_samples", "maker_for", "unsupported"]


def unsupported(model: OnlineISNMF) -> str | None:
    """What of a model's settings cannot be learned here, as a sentence, or None."""
    if model.backend != "torch":
        return f"backend={model.backend!r} works on no device."
    if model.dictionary_penalty is not None:
        return "A dictionary_penalty is solved on the host, batch by batch."
    if model.batch_size is None:
        return "batch_size=None needs all frames at once."
    return None


def maker_for(model: OnlineISNMF) -> FrameMaker:
    """What makes frames for a model that has `audio_`, on its device."""
    obstacle = unsupported(model)
    if obstacle is not None:
        raise ValueError(f"{obstacle} Use `partial_fit` for this.")
    audio: AudioSettings = model.audio_
    device = torch.device(model.device or "cpu")
    ready(str(device))
    background = parameters.background_of(model, audio.stft.n_bins)
    return FrameMaker(audio.stft, audio.silence, model.batch_size or 1, background, device)


def begin(model: OnlineISNMF, rounds: Iterator[MixedFrames]) -> list[MixedFrames]:
    """Draw the first dictionary from the first batches, and give their rounds back."""
    first: list[MixedFrames] = []
    for frames in rounds:
        first.append(frames)
        if sum(len(each.power) for each in first) >= SEED_FRAMES:
            break
    if first:
        ends = np.cumsum(np.concatenate([each.batch_sizes for each in first]))
        n_taken = ends[min(int(np.searchsorted(ends, SEED_FRAMES)), len(ends) - 1)]
        model.begin(torch.cat([each.power for each in first])[:n_taken].cpu().numpy())
    return first


def learn_samples(
    model: OnlineISNMF,
    recordings: Array | Sequence[Array],
    *,
    passes: int = 1,
    seed: int = 0,
    progress: Callable[[LearningProgress], object] | None = None,
    **cuts: Any,
) -> OnlineISNMF:
    """Teach a model recordings that are held in memory; the model is changed and returned.

    Parameters
    ----------
    model : OnlineISNMF
        With `audio_`, an `AudioSettings`, and ``backend="torch"``.
    recordings : array of shape (n_samples,), int16 or float32, or a sequence of such
        At the model's sampling rate; int16 counts from -1 to 1 as in a file.
    passes, seed : int
    progress : callable, optional
        Called with a `LearningProgress` after every round.
    **cuts
        `buffer_size` and `segment_size` of `ondes.signal.batches.Batches`.

    Examples
    --------
    >>> from ondes.signal.stft import Stft
    >>> noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    >>> model = OnlineISNMF(4, random_state=0, backend="torch")
    >>> model.audio_ = AudioSettings(8000, Stft(256))
    >>> learn_samples(model, noise).components_.shape
    (4, 129)
    """
    parameters.check(model)
    arrays = [recordings] if isinstance(recordings, np.ndarray) else list(recordings)
    for array in arrays:
        if array.ndim != 1 or array.dtype not in (np.int16, np.float32):
            raise ValueError(
                f"Samples of shape {array.shape} and type {array.dtype} must be one row of int16 "
                "or float32."
            )
    audio: AudioSettings = model.audio_
    rounds = RoundsInMemory(
        maker_for(model),
        arrays,
        audio.stft,
        audio.sr,
        model.batch_size or 1,
        seed=seed,
        n_passes=passes,
        silence=audio.silence,
        **{"buffer_size": SHUFFLED_BYTES // (4 * audio.stft.n_bins)} | cuts,
    )
    return run(
        model,
        rounds,
        Course().teach,
        begin=begin,
        names=[each.name for each in rounds.recordings],
        settings={"passes": passes, "seed": seed},
        failures=Failures(),
        progress=progress,
    )
