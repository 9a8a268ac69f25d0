"""The training loop of a separator: time, held-out mixtures, the best state, checkpoints."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondes.cores import each, n_cores
from ondes.learning.checkpoint import EVERY_S
from ondes.learning.separator_training.mixtures import (
    Mixtures,
    TrainingSettings,
    negative_si_sdr,
    si_sdr_of_masks,
)
from ondes.learning.separator_training.network import Network
from ondes.learning.separator_training.pools import SamplePool
from ondes.learning.separator_training.recurrent_network import BandNetwork
from ondes.models.band_network import BandWeights
from ondes.nmf.backends.devices import Tensor, memory_errors, torch
from ondes.nmf.unfolded import UnfoldedWeights
from ondes.signal.audio_settings import AudioSettings

__all__ = ["SeparatorProgress", "SeparatorTrainer"]

N_CHECKS = 12  # of the held-out mixtures, in a run
N_HELD_OUT = 32  # mixtures
PATIENCE = 5  # checks without a better one that end training
REFRESH_STEPS = 50  # updates between two refreshes of the pools


@dataclass(frozen=True)
class SeparatorProgress:
    """Where training stands.

    Attributes
    ----------
    share_done : float
        From 0 to 1.
    seconds_left : float or None
        None where it is not known yet.
    n_updates : int
    si_sdr : dict of str to float
        Of each source on held-out mixtures, in decibels, at the last check.
    best : float
        The best mean of these so far.
    """

    share_done: float
    seconds_left: float | None
    n_updates: int
    si_sdr: dict[str, float]
    best: float


class SeparatorTrainer:
    """Trains a separator on pools of samples.

    Parameters
    ----------
    names : sequence of str
    network : Network or BandNetwork
        As it starts.
    pools, held_out : sequence of SamplePool
        Of each source: to train on, and kept aside.
    audio : AudioSettings
    training : TrainingSettings
    device : str
    seed : int
    """

    def __init__(
        self,
        names: Sequence[str],
        network: Network | BandNetwork,
        pools: Sequence[SamplePool],
        held_out: Sequence[SamplePool],
        audio: AudioSettings,
        *,
        training: TrainingSettings,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self._names, self._pools, self._training = names, pools, training
        self._device = torch.device(device)
        self._network = network.to(self._device)
        self._tensors = [torch.tensor(pool.samples, device=device) for pool in pools]
        self._seed, self._generator = seed, torch.Generator(self._device)
        self._mixtures = Mixtures(self._tensors, audio, training, self._generator)
        self._checks = self._held_out_mixtures(held_out, audio, seed)
        is_cuda = self._device.type == "cuda"
        rate: Any = training.learning_rate
        if is_cuda:
            rate = torch.tensor(rate, device=device)
        self._is_by_mixture = isinstance(network, BandNetwork) and not is_cuda
        self._parameters = list(self._network.parameters())
        self._adam = torch.optim.Adam(
            self._parameters,
            lr=rate,
            betas=(0.9, 0.99),
            capturable=is_cuda,
            fused=None if is_cuda else True,
        )
        self.n_updates, self.share_done, self._next_check = 0, 0.0, 1 / N_CHECKS
        self.si_sdr: dict[str, float] = {}
        self.best_si_sdr: dict[str, float] = {}
        self.best, self._n_worse = -math.inf, 0
        self._best_state = copy.deepcopy(self._network.state_dict())
        self._graph: torch.cuda.CUDAGraph | None = None

    @staticmethod
    def _held_out_mixtures(
        held_out: Sequence[SamplePool], audio: AudioSettings, seed: int
    ) -> list[Tensor]:
        """Spectra of mixtures at equal levels, of recordings that training does not use."""
        settings = TrainingSettings(
            batch_size=N_HELD_OUT, seconds=4.0, level_db=0.0, equaliser_db=0.0, semitones=0
        )
        samples = [torch.tensor(pool.samples) for pool in held_out]
        generator = torch.Generator().manual_seed(seed)
        return list(torch.split(Mixtures(samples, audio, settings, generator).draw(), 8))

    def run(
        self,
        seconds: float | None,
        n_updates: int | None = None,
        *,
        progress: Callable[[SeparatorProgress], object] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        save: Callable[[], object] = lambda: None,
    ) -> None:
        """Train for some seconds, or for a number of updates, from `share_done` on.

        Parameters
        ----------
        seconds : float or None
        n_updates : int or None
            Of the whole run; then the result is a function of the seed on one device.
        progress : callable, optional
            Called with a `SeparatorProgress` now and then.
        should_stop : callable
            Asked before every update.
        save : callable
            Called after every check, and every minute.
        """
        with self._one_torch_thread(), memory_errors(self._device):
            self._run(seconds, n_updates, progress, should_stop, save)

    def _run(
        self,
        seconds: float | None,
        n_updates: int | None,
        progress: Callable[[SeparatorProgress], object] | None,
        should_stop: Callable[[], bool],
        save: Callable[[], object],
    ) -> None:
        begin, start_share = time.perf_counter(), self.share_done
        if not self.si_sdr:
            self._check()
        reported = saved = 0.0
        while not self.is_finished and not should_stop():
            self._update()
            elapsed = time.perf_counter() - begin
            if n_updates is not None:
                self.share_done = min(1.0, self.n_updates / n_updates)
            else:
                self.share_done = min(1.0, start_share + elapsed / max(seconds or 0, 1e-9))
            if self.share_done >= self._next_check or self.share_done >= 1:
                self._next_check = self.share_done + 1 / N_CHECKS
                self._check()
                save()
                saved = elapsed
            elif elapsed - saved > EVERY_S:
                save()
                saved = elapsed
            if progress is not None and (elapsed - reported > 0.5 or self.share_done >= 1):
                reported = elapsed
                done = self.share_done - start_share
                left = elapsed * (1 - self.share_done) / done if done > 0.01 else None
                progress(
                    SeparatorProgress(self.share_done, left, self.n_updates, self.si_sdr, self.best)
                )

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.share_done >= 1 or self._n_worse >= PATIENCE

    def weights(self) -> UnfoldedWeights | BandWeights:
        """Of the state that separated the held-out mixtures best."""
        best = copy.deepcopy(self._network)
        best.load_state_dict(self._best_state)
        weights: UnfoldedWeights | BandWeights = best.weights()
        return weights

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to continue, as plain values and arrays."""
        return {
            "n_updates": self.n_updates,
            "share_done": self.share_done,
            "next_check": self._next_check,
            "best": self.best,
            "n_worse": self._n_worse,
            "si_sdr": dict(self.si_sdr),
            "best_si_sdr": dict(self.best_si_sdr),
            "network": _arrays(self._network.state_dict()),
            "best_network": _arrays(self._best_state),
            "moments": [
                [self._adam.state[one][name].cpu().numpy() for name in ("exp_avg", "exp_avg_sq")]
                for one in self._parameters
                if one in self._adam.state
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` of the same settings and recordings.

        On a CPU the end is then that of the unbroken run, bit for bit. ValueError, LookupError or
        TypeError where the state does not fit.
        """
        self.n_updates, self.share_done = int(state["n_updates"]), float(state["share_done"])
        self._next_check, self._n_worse = float(state["next_check"]), int(state["n_worse"])
        if min(self.n_updates, self._n_worse) < 0 or not 0 <= self.share_done <= 1:
            raise ValueError("its counts are not valid")
        self.best = float(state["best"])
        self.si_sdr = {name: float(state["si_sdr"][name]) for name in self._names}
        self.best_si_sdr = {name: float(state["best_si_sdr"][name]) for name in self._names}
        moments = state["moments"]
        shapes = [tuple(one.shape) for one in self._parameters]
        if [tuple(map(np.shape, pair)) for pair in moments] != [(one, one) for one in shapes]:
            raise ValueError("its moments have another shape")
        try:
            self._best_state = _tensors(state["best_network"], self._device)
            self._network.load_state_dict(self._best_state)
            self._network.load_state_dict(_tensors(state["network"], self._device))
        except RuntimeError as error:
            raise ValueError("it belongs to a separator of another shape") from error
        for parameter, averages in zip(self._parameters, moments, strict=True):
            self._adam.state[parameter] = {
                "step": torch.tensor(float(self.n_updates), device=self._device),
                "exp_avg": torch.tensor(averages[0], dtype=torch.float32, device=self._device),
                "exp_avg_sq": torch.tensor(averages[1], dtype=torch.float32, device=self._device),
            }
        for _ in range(self.n_updates // REFRESH_STEPS):
            if not self._refresh():
                break

    # ---- one update ----

    def _update(self) -> None:
        if self.n_updates % REFRESH_STEPS == REFRESH_STEPS - 1:
            self._refresh()
        settings = self._training
        # Every update draws from a seed of its own: nothing has to be saved, or can be forged.
        sequence = np.random.SeedSequence([self._seed, self.n_updates])
        self._generator.manual_seed(int(sequence.generate_state(1)[0]))
        warm = min(1.0, (self.n_updates + 1) / settings.n_warm_up)
        rate = settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * self.share_done))
        if self._device.type == "cuda":
            self._adam.param_groups[0]["lr"].fill_(rate)
            if self._graph is None:
                self._graph = self._record()
            self._graph.replay()
            if self.n_updates % 20 == 0:
                torch.cuda.synchronize(self._device)
        else:
            self._adam.param_groups[0]["lr"] = rate
            self._step()
        self.n_updates += 1

    def _refresh(self) -> bool:
        """Replace a part of the samples, where not all are in memory; whether anything changed."""
        is_new = False
        for pool, tensor in zip(self._pools, self._tensors, strict=True):
            if (changed := pool.refresh()) is not None:
                tensor[changed] = torch.from_numpy(pool.samples[changed]).to(self._device)
                is_new = True
        return is_new

    def _step(self) -> None:
        sources = self._mixtures.draw()
        self._adam.zero_grad(set_to_none=self._device.type != "cuda")
        if self._is_by_mixture:
            found = list(each(self._gradients, torch.split(sources, 1), n_cores()))
            for parameter, *gradients in zip(self._parameters, *found, strict=True):
                parameter.grad = torch.stack(gradients).mean(dim=0)
        else:
            loss = negative_si_sdr(self._network(sources.sum(dim=1).abs()), sources)
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self._parameters:  # one mixture may not spoil a run
            assert parameter.grad is not None
            torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)
        torch.nn.utils.clip_grad_norm_(self._parameters, self._training.largest_gradient)
        self._adam.step()

    def _gradients(self, sources: Tensor) -> tuple[Tensor, ...]:
        loss = negative_si_sdr(self._network(sources.sum(dim=1).abs()), sources)
        return torch.autograd.grad(loss, self._parameters)

    @contextmanager
    def _one_torch_thread(self) -> Iterator[None]:
        """For each mixture: they would wait for each other after every small operation."""
        n_before = torch.get_num_threads()
        if self._is_by_mixture:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(n_before)

    def _record(self) -> torch.cuda.CUDAGraph:
        """The whole update, random numbers included, as one CUDA graph."""
        before = copy.deepcopy(self._network.state_dict()), copy.deepcopy(self._adam.state_dict())
        other = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        other.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(other):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream(self._device).wait_stream(other)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            self._step()
        with torch.no_grad():
            for name, value in self._network.state_dict().items():
                value.copy_(before[0][name])
            fresh = not before[1]["state"]
            for number, parameter in enumerate(self._parameters):
                for name, value in self._adam.state[parameter].items():
                    value.copy_(0 if fresh else before[1]["state"][number][name])
        return graph

    # ---- held-out mixtures ----

    def _check(self) -> None:
        self._network.eval()
        n_threads = n_cores() if self._is_by_mixture else 1
        ratios = torch.cat(list(each(self._si_sdr, self._checks, n_threads)))
        self._network.train()
        means = ratios.mean(dim=0).tolist()
        self.si_sdr = dict(zip(self._names, means, strict=True))
        value = sum(means) / len(means)
        if value > self.best:
            self.best, self._n_worse = value, 0
            self.best_si_sdr = self.si_sdr
            self._best_state = copy.deepcopy(self._network.state_dict())
        else:
            self._n_worse += 1

    def _si_sdr(self, sources: Tensor) -> Tensor:
        sources = sources.to(self._device)
        with torch.no_grad():
            return si_sdr_of_masks(self._network(sources.sum(dim=1).abs()), sources)


def _arrays(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.detach().cpu().numpy() for name, value in state.items()}


def _tensors(state: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.tensor(value, device=device) for name, value in state.items()}
