"""The trained separator on a device, in blocks as large as they come."""

from __future__ import annotations

from ondes.nmf.backends.devices import Tensor, ready, torch
from ondes.nmf.unfolded import (
    LARGEST_CHANGE,
    LEAST_FLOOR,
    LONGEST_CENTRED,
    TINY,
    UnfoldedWeights,
)

__all__ = ["DeviceUnfoldedMasks"]


class DeviceUnfoldedMasks:
    """What `ondes.nmf.unfolded.UnfoldedMasks` is on the host, which explains the formulas.

    Parameters
    ----------
    weights : UnfoldedWeights
    device : str
    """

    def __init__(self, weights: UnfoldedWeights, device: str) -> None:
        ready(device)
        self._weights, self._device = weights, device
        self._dictionaries, self._denominators, self._exponents = (
            torch.tensor(each, device=device)
            for each in (weights.dictionaries, weights.denominators, weights.exponents)
        )
        self._decoder = torch.tensor(weights.decoder, device=device).flatten(1, 2)
        self._ahead = LONGEST_CENTRED // 2
        self._past = max(*weights.contexts, LONGEST_CENTRED) - 1
        self._reach = weights.decoder.shape[1] // 2
        self.delay = self._ahead + self._reach
        self.reset()

    def reset(self) -> None:
        """Forget everything pushed so far."""
        n_rows = self._dictionaries.shape[1]
        self._encoded = _Rows(torch.zeros((0, n_rows), device=self._device))
        self._levels = _Rows(torch.zeros((0, 1), device=self._device))
        self._weighed = _Rows(torch.zeros((0, n_rows), device=self._device))
        self._n_out = 0

    def push(self, spectra: Tensor, amplitude: Tensor) -> Tensor:
        """Take the next frames; return the masks that are ready; see `MaskStream`."""
        if len(spectra):
            self._encode(spectra.nan_to_num(nan=0.0).sqrt() * amplitude[:, None])
        return self._advance(is_end=False)

    def flush(self) -> Tensor:
        """Return the last masks, and reset."""
        masks = self._advance(is_end=True)
        self.reset()
        return masks

    def _encode(self, magnitudes: Tensor) -> None:
        weights = self._weights
        level = magnitudes.mean(dim=1, keepdim=True)
        target = magnitudes / level.clamp(min=LEAST_FLOOR)
        n_rows, n_own = self._dictionaries.shape[1], len(self._dictionaries) - 1
        found = target.new_full((1, n_rows), 10 / n_rows)
        for step in range(weights.n_steps):
            own = max(0, step - (weights.n_steps - n_own) + 1)
            dictionary = self._dictionaries[own]
            ratio = target / (found @ dictionary + TINY)
            found = found * (ratio @ dictionary.T) / self._denominators[own]
        self._encoded.append(found * level)
        self._levels.append(level)

    def _advance(self, is_end: bool) -> Tensor:
        """Weigh and decode whatever has all the neighbours it needs."""
        first, last = self._weighed.end, self._encoded.end - (0 if is_end else self._ahead)
        if last > first:
            self._weighed.append(self._weigh(first, last))
            for rows in (self._encoded, self._levels):
                rows.forget(last - self._past)
        first, last = self._n_out, self._weighed.end - (0 if is_end else self._reach)
        masks = self._decode(first, max(first, last))
        self._n_out = max(first, last)
        self._weighed.forget(self._n_out - self._reach)
        return masks

    def _weigh(self, first: int, last: int) -> Tensor:
        weights, floor = self._weights, self._weights.floor
        longest = weights.contexts[-1]
        level = self._levels.means(first, last, longest)
        around = self._levels.means(first, last, LONGEST_CENTRED) / longest
        level = torch.maximum(level, around).clamp(min=LEAST_FLOOR)
        here = self._encoded[first:last]
        now = torch.log(here / level + floor)
        change = torch.zeros_like(here)
        for exponent, n_frames in zip(self._exponents, weights.contexts, strict=True):
            mean = self._encoded.means(first, last, n_frames)
            change += exponent * (torch.log(mean / level + floor) - now)
        return here * torch.exp(change.clamp(-LARGEST_CHANGE, LARGEST_CHANGE))

    def _decode(self, first: int, last: int) -> Tensor:
        n_sources, n_decoder, n_components, _ = self._weights.decoder.shape
        begin, end = max(0, first - self._reach), min(self._weighed.end, last + self._reach)
        padding = begin - (first - self._reach), last + self._reach - end
        rows = torch.nn.functional.pad(self._weighed[begin:end], (0, 0, *padding))
        by_source = rows.view(-1, n_sources, n_components).transpose(0, 1)
        shifted = [by_source[:, i : i + last - first] for i in range(n_decoder)]
        masks = torch.bmm(torch.cat(shifted, dim=-1), self._decoder) + LEAST_FLOOR
        masks = (masks / masks.amax(dim=0)) ** self._weights.mask_exponent
        return masks / masks.sum(dim=0)


class _Rows:
    """The last rows of a stream, addressed by their number from its beginning."""

    def __init__(self, rows: Tensor) -> None:
        self._rows, self._first = rows, 0

    @property
    def end(self) -> int:
        return self._first + len(self._rows)

    def __getitem__(self, rows: slice) -> Tensor:
        return self._rows[rows.start - self._first : rows.stop - self._first]

    def append(self, rows: Tensor) -> None:
        self._rows = torch.cat([self._rows, rows])

    def forget(self, before: int) -> None:
        n_dropped = max(0, before - self._first)
        self._rows, self._first = self._rows[n_dropped:].clone(), self._first + n_dropped

    def means(self, first: int, last: int, n_frames: int) -> Tensor:
        """Of each row, the mean over `n_frames` around it; over those that exist, at the ends."""
        before = n_frames // 2 if n_frames <= LONGEST_CENTRED else n_frames - 1
        after = n_frames - 1 - before
        begin, end = max(0, first - before), min(self.end, last + after)
        padding = begin - (first - before), last + after - end
        pad, pool = torch.nn.functional.pad, torch.nn.functional.avg_pool1d
        values = self[begin:end].T[None]
        count = pool(pad(torch.ones_like(values[:, :1]), padding), n_frames, 1)
        return (pool(pad(values, padding), n_frames, 1) / count)[0].T
