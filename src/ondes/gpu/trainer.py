"""Training on the rounds of `ondes.gpu.batches`, each of many mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ondes.nmf.backends.devices import Tensor, torch
from ondes.nmf.learner import DictionaryLearner
from ondes.training.batch_source import Update
from ondes.training.loop import INITIAL_FRAMES

__all__ = ["GpuTrainer", "initialise", "unsupported"]


def unsupported(estimator: DictionaryLearner) -> str | None:
    """What of an estimator's settings cannot be trained here, as a sentence, or None."""
    if estimator.backend != "torch":
        return f"backend={estimator.backend!r} does not use a device."
    if not estimator.settings.trains_on_device:
        return "A dictionary_penalty is solved on the host, batch by batch."
    return None


def initialise(estimator: DictionaryLearner) -> Callable[[Iterator[Tensor]], list[Tensor]]:
    """What draws the first dictionary from the first batches, as the host does."""
    size = estimator.batch_size or INITIAL_FRAMES

    def draw(rounds: Iterator[Tensor]) -> list[Tensor]:
        first: list[Tensor] = []
        batches: list[Tensor] = []
        for frames in rounds:
            first.append(frames)
            for batch in torch.split(frames, size) if len(frames) else ():
                if sum(map(len, batches)) < INITIAL_FRAMES:
                    batches.append(batch)
            if sum(map(len, batches)) >= INITIAL_FRAMES:
                break
        if batches:
            estimator.initialise(torch.cat(batches))
        return first

    return draw


class GpuTrainer:
    """Trains an estimator on its device.

    Parameters
    ----------
    estimator : DictionaryLearner
        With ``backend="torch"``; after every round it has the dictionary and statistics.
    """

    def __init__(self, estimator: DictionaryLearner) -> None:
        self._estimator = estimator

    def step(self, frames: Tensor) -> Update:
        """One update for each batch of a round; then dictionary and statistics come back."""
        if not len(frames):
            return Update(0.0, 0.0)
        return Update(*self._estimator.learn_batches(frames))
