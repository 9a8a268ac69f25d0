"""The separator as a PyTorch module; `ondes.nmf.unfolded` computes the same in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.nmf.backends.devices import Tensor, torch
from ondes.nmf.unfolded import (
    LARGEST_CHANGE,
    LEAST_FLOOR,
    LONGEST_CENTRED,
    TINY,
    UnfoldedWeights,
)

__all__ = ["Network", "NetworkSettings"]

LOWEST_LOG = -9.0


@dataclass(frozen=True)
class NetworkSettings:
    """The shape of the network.

    Attributes
    ----------
    n_steps : int
        Steps of the unfolded solver.
    n_untied : int
        How many of the last ones have a dictionary of their own.
    n_decoder : int
        Frames that the decoder looks at.
    contexts : tuple of int
        Frames of the temporal means.
    sparsity : float
        λ at the start.
    floor : float
        Of the temporal means, relative to the level of the longest context.
    """

    n_steps: int = 12
    n_untied: int = 4
    n_decoder: int = 5
    contexts: tuple[int, ...] = (3, 9, 31)
    sparsity: float = 2.0
    floor: float = 1e-4


class Network(torch.nn.Module):  # type: ignore[misc]
    """Magnitudes in, masks out; everything stays positive because logarithms are trained.

    Parameters
    ----------
    dictionaries : sequence of arrays of shape (n_components, n_bins)
        One per source, of any scale.
    settings : NetworkSettings
    n_without_gradient : int
        First steps that no gradient goes through.
    """

    def __init__(
        self,
        dictionaries: Sequence[NDArray[Any]],
        settings: NetworkSettings,
        n_without_gradient: int = 0,
    ) -> None:
        super().__init__()
        self.settings, self._n_without_gradient = settings, n_without_gradient
        self.n_sources = len(dictionaries)
        rows = torch.stack([torch.as_tensor(each, dtype=torch.float32) for each in dictionaries])
        rows = rows / rows.norm(dim=2, keepdim=True)
        logs = rows.clamp_min(math.exp(LOWEST_LOG)).log()
        n_rows, n_dictionaries = logs.shape[0] * logs.shape[1], 1 + settings.n_untied
        parameter = torch.nn.Parameter
        self.log_dictionaries = parameter(logs.flatten(0, 1).repeat(n_dictionaries, 1, 1))
        self.log_sparsity = parameter(
            logs.new_full((n_dictionaries, n_rows), math.log(settings.sparsity))
        )
        decoder = logs.new_full((len(logs), settings.n_decoder, *logs.shape[1:]), LOWEST_LOG)
        decoder[:, settings.n_decoder // 2] = logs
        self.log_decoder = parameter(decoder)
        self.exponents = parameter(logs.new_zeros((len(settings.contexts), n_rows)))
        self.mask_exponent = parameter(logs.new_ones(()))

    def forward(self, magnitudes: Tensor) -> Tensor:
        """Masks (batch, n_sources, n_frames, n_bins) of magnitudes (batch, n_frames, n_bins)."""
        n_batch, n_frames, n_bins = magnitudes.shape
        level = magnitudes.mean(dim=-1, keepdim=True)
        targets = (magnitudes / level.clamp_min(LEAST_FLOOR)).reshape(-1, n_bins)
        found = self._encode(targets).reshape(n_batch, n_frames, -1) * level
        found = self._weigh(found, level)

        reach = self.settings.n_decoder // 2
        by_source = found.reshape(n_batch, n_frames, self.n_sources, -1).permute(2, 0, 1, 3)
        padded = torch.nn.functional.pad(by_source, (0, 0, reach, reach))
        shifts = range(self.settings.n_decoder)
        around = torch.cat([padded[:, :, i : i + n_frames] for i in shifts], dim=-1)
        around = around.reshape(self.n_sources, n_batch * n_frames, -1)
        decoded = torch.bmm(around, self.log_decoder.exp().flatten(1, 2)) + LEAST_FLOOR
        # Relative to the largest: powers of tiny numbers would vanish in every source at once.
        weighted = (decoded / decoded.detach().amax(dim=0)) ** self.mask_exponent
        masks = weighted / weighted.sum(dim=0)
        return masks.reshape(self.n_sources, n_batch, n_frames, n_bins).transpose(0, 1)

    def _encode(self, targets: Tensor) -> Tensor:
        settings = self.settings
        dictionaries = self.log_dictionaries.exp()
        denominators = dictionaries.sum(dim=-1) + self.log_sparsity.exp()
        n_rows = dictionaries.shape[1]
        found = targets.new_full((1, n_rows), 10 / n_rows)
        for step in range(settings.n_steps):
            own = max(0, step - (settings.n_steps - settings.n_untied) + 1)
            with torch.set_grad_enabled(
                torch.is_grad_enabled() and step >= self._n_without_gradient
            ):
                ratio = targets / (found @ dictionaries[own] + TINY)
                found = found * (ratio @ dictionaries[own].T) / denominators[own]
        return found

    def _weigh(self, found: Tensor, level: Tensor) -> Tensor:
        contexts, floor = self.settings.contexts, self.settings.floor
        longest = _means(level, contexts[-1])
        around = _means(level, LONGEST_CENTRED) / contexts[-1]
        longest = torch.maximum(longest, around).clamp_min(LEAST_FLOOR)
        now = torch.log(found / longest + floor)
        change = torch.zeros_like(found)
        for exponent, n_frames in zip(self.exponents, contexts, strict=True):
            change = change + exponent * (
                torch.log(_means(found, n_frames) / longest + floor) - now
            )
        return found * torch.exp(change.clamp(-LARGEST_CHANGE, LARGEST_CHANGE))

    def weights(self) -> UnfoldedWeights:
        """What inference needs, as NumPy arrays."""
        with torch.no_grad():
            dictionaries = self.log_dictionaries.exp()
            denominators = dictionaries.sum(dim=-1) + self.log_sparsity.exp()
            settings = self.settings
            return UnfoldedWeights(
                _as_numpy(dictionaries),
                _as_numpy(denominators),
                _as_numpy(self.log_decoder.exp()),
                _as_numpy(self.exponents),
                contexts=settings.contexts,
                n_steps=settings.n_steps,
                mask_exponent=float(self.mask_exponent),
                floor=settings.floor,
            )


def _as_numpy(values: Tensor) -> NDArray[np.float32]:
    return np.asarray(values.cpu().numpy(), dtype=np.float32)


def _means(values: Tensor, n_frames: int) -> Tensor:
    """Of (batch, n_frames, n), the means over frames around; over those that exist, at the ends."""
    before = n_frames // 2 if n_frames <= LONGEST_CENTRED else n_frames - 1
    padding = (before, n_frames - 1 - before)
    pad, pool = torch.nn.functional.pad, torch.nn.functional.avg_pool1d
    values = values.transpose(1, 2)
    count = pool(pad(values.new_ones(1, 1, values.shape[-1]), padding), n_frames, 1)
    return (pool(pad(values, padding), n_frames, 1) / count).transpose(1, 2)
