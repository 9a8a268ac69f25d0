"""The network of the shelf as a PyTorch module; `ondes.models.band_network` computes the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ondes.models.band_network import FLOOR, SMALL, BandWeights
from ondes.models.trained_separator import TrainedSeparator
from ondes.nmf.backends.devices import Tensor, torch

__all__ = ["BandNetwork", "digest", "with_sources"]


class BandNetwork(torch.nn.Module):  # type: ignore[misc]
    """Magnitudes in, masks out.

    Parameters
    ----------
    weights : BandWeights
        The start.
    """

    embedding: Any
    place: Any
    inwards: Any
    bias: Any
    outwards: Any
    hidden: Any
    hidden_bias: Any
    mask: Any
    mask_bias: Any

    def __init__(self, weights: BandWeights) -> None:
        super().__init__()
        self.n_sources = weights.n_sources
        for name in BandWeights.__dataclass_fields__:
            values = getattr(weights, name)
            if isinstance(values, tuple):
                setattr(self, name, torch.nn.ParameterList(map(_parameter, values)))
            else:
                setattr(self, name, _parameter(values))

    def forward(self, magnitudes: Tensor) -> Tensor:
        """Masks (batch, n_sources, n_frames, n_bins) of magnitudes (batch, n_frames, n_bins)."""
        n_batch, n_frames, _ = magnitudes.shape
        power = magnitudes.square()
        power = power / power.mean(dim=(1, 2), keepdim=True).clamp_min(1e-30)
        feature = (power + FLOOR).sqrt().sqrt().sqrt()
        embedded, first = [], 0
        for each in self.embedding:
            n, width, _ = each.shape
            bands = feature[..., first : first + n * width].reshape(-1, n, width)
            embedded.append(torch.bmm(bands.transpose(0, 1), each).transpose(0, 1))
            first += n * width
        x = torch.cat(embedded, dim=1) + self.place
        x = x.reshape(n_batch, n_frames, *self.place.shape)
        sweeps = zip(self.inwards, self.bias, self.outwards, strict=True)
        for number, (inwards, bias, outwards) in enumerate(sweeps):
            gates = torch.nn.functional.linear(_normal(x), inwards.T, bias)
            x = x + _Sweep.apply(gates, 1 + number % 2) @ outwards  # type: ignore[no-untyped-call]
        x, masks, first = _normal(x).flatten(0, 1), [], 0
        groups = zip(self.hidden, self.hidden_bias, self.mask, self.mask_bias, strict=True)
        for hidden, hidden_bias, mask, mask_bias in groups:
            n = len(hidden)
            bands = x[:, first : first + n].transpose(0, 1)
            between = torch.relu(torch.baddbmm(hidden_bias, bands, hidden))
            logits = torch.baddbmm(mask_bias, between, mask)
            logits = logits.reshape(n, n_batch, n_frames, self.n_sources, -1)
            masks.append(logits.permute(1, 3, 2, 0, 4).flatten(3))
            first += n
        return torch.softmax(torch.cat(masks, dim=-1), dim=1)

    def weights(self) -> BandWeights:
        """What inference needs, as NumPy arrays."""
        found: dict[str, Any] = {}
        for name in BandWeights.__dataclass_fields__:
            values = getattr(self, name)
            is_list = isinstance(values, torch.nn.ParameterList)
            found[name] = tuple(map(_half, values)) if is_list else _half(values)
        return BandWeights(**found)


def with_sources(separator: TrainedSeparator, names: Sequence[str]) -> BandWeights:
    """The weights of a separator on the shelf for these sources.

    Sources that it does not have start as the mean of those of its own that are not wanted, or of
    all.
    """
    weights, own = separator.weights, separator.names
    assert isinstance(weights, BandWeights)
    others = [own.index(name) for name in own if name not in names] or list(range(len(own)))

    def chosen(values: NDArray[np.float16]) -> NDArray[np.float16]:
        by_source = values.reshape(*values.shape[:-1], len(own), -1).astype(np.float32)
        rows = [
            by_source[..., own.index(name), :]
            if name in own
            else by_source[..., others, :].mean(axis=-2)
            for name in names
        ]
        return np.concatenate(rows, axis=-1).astype(np.float16)

    parts = {name: getattr(weights, name) for name in BandWeights.__dataclass_fields__}
    for name in ("mask", "mask_bias"):
        parts[name] = tuple(map(chosen, parts[name]))
    return BandWeights(**parts)


def digest(weights: BandWeights) -> str:
    """Of all numbers."""
    found = hashlib.sha256()
    for name in BandWeights.__dataclass_fields__:
        values = getattr(weights, name)
        for each in values if isinstance(values, tuple) else (values,):
            found.update(each.tobytes())
    return found.hexdigest()[:32]


class _Sweep(torch.autograd.Function):  # type: ignore[misc]
    """h · max(g, 0) along frames (1) or bands (2) of gates (batch, n_frames, n_bands, 3 n_states).

    PyTorch's own gradient would keep every step.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, axis: int) -> Tensor:
        keep, new, gain = gates.chunk(3, dim=-1)
        keep = torch.sigmoid(keep)
        h = torch.addcmul(new, keep, new, value=-1)
        for steps, keeps in _directions(axis, h, keep):
            for n in range(1, len(steps)):
                steps[n].addcmul_(keeps[n], steps[n - 1])
        ctx.axis = axis
        ctx.save_for_backward(gates, keep, h)
        return h * torch.relu(gain)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        gates, keep, h = ctx.saved_tensors
        _, new, gain = gates.chunk(3, dim=-1)
        of_h = grad * torch.relu(gain)
        for slopes, keeps in _directions(ctx.axis, of_h, keep):
            for n in range(len(slopes) - 1, 0, -1):
                slopes[n - 1].addcmul_(keeps[n], slopes[n])
        before, n_after = torch.zeros_like(h), h.shape[ctx.axis] - 1
        for way, (target, steps) in enumerate(
            zip(before.chunk(2, -1), h.chunk(2, -1), strict=True)
        ):
            cut = target.narrow(ctx.axis, 1 - way, n_after)
            cut.copy_(steps.narrow(ctx.axis, way, n_after))
        found = torch.empty_like(gates)
        of_keep, of_new, of_gain = found.chunk(3, dim=-1)
        of_h_new = torch.addcmul(of_h, of_h, keep, value=-1)
        of_new.copy_(of_h_new)
        torch.mul(of_h_new.mul_(keep), before.sub_(new), out=of_keep)
        torch.mul(grad, h, out=of_gain)
        of_gain.mul_(gain > 0)
        return found, None


def _directions(axis: int, *values: Tensor) -> list[list[Sequence[Tensor]]]:
    """Steps of the first half of the numbers, and of the second from the last to the first."""
    halves = [each.chunk(2, dim=-1) for each in values]
    return [
        [each[0].unbind(axis) for each in halves],
        [each[1].unbind(axis)[::-1] for each in halves],
    ]


def _normal(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + SMALL)


def _parameter(values: NDArray[np.float16]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values.astype(np.float32)))


def _half(values: Tensor) -> NDArray[np.float16]:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float16)
