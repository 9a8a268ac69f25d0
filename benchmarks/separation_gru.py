"""A bidirectional recurrent mask network, trained on the very mixtures that ondes trains on."""

from __future__ import annotations

import copy
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from separation_scenes import SR, Condition

from ondes.learning.separator_training.mixtures import (
    Mixtures,
    TrainingSettings,
    negative_si_sdr,
    si_sdr_of_masks,
)
from ondes.learning.separator_training.pools import SamplePool, SourceRecordings
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

if TYPE_CHECKING:
    from separation_methods import Budget, Separate

STFT = Stft(2048, 512)
WIDTH = {"cpu": 160, "cuda": 256}  # about as many weights as ondes has, or more
N_CHECKS = 12


class MaskNetwork(torch.nn.Module):
    """Logarithms of levelled magnitudes in, masks that sum to one out."""

    def __init__(self, n_bins: int, n_sources: int, width: int) -> None:
        super().__init__()
        self.n_sources = n_sources
        self.reduce = torch.nn.Linear(n_bins, width)
        self.gru = torch.nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.expand = torch.nn.Linear(2 * width, n_bins * n_sources)

    def forward(self, magnitudes: torch.Tensor) -> torch.Tensor:
        level = magnitudes.mean(dim=(1, 2), keepdim=True).clamp_min(1e-7)
        features = torch.log(magnitudes / level + 1e-3)
        found = self.expand(self.gru(torch.relu(self.reduce(features)))[0])
        masks = found.unflatten(-1, (self.n_sources, -1)).transpose(1, 2)
        return torch.softmax(masks, dim=1)


def train_gru(condition: Condition, seed: int, budget: Budget) -> Separate:
    begin, device = time.perf_counter(), budget.device
    torch.manual_seed(seed)
    audio = AudioSettings(SR, STFT, spectrum="magnitude")
    parts = [
        SourceRecordings.of(name, folder, audio, seed, lambda *_: None)
        for name, folder in condition.training.items()
    ]
    pools = [SamplePool(each.training, audio, seed) for each in parts]
    held_out = [SamplePool(each.held_out, audio, seed, seconds=300) for each in parts]
    for pool in (*pools, *held_out):
        pool.close()
    settings = TrainingSettings.for_device(device)
    generator = torch.Generator(device).manual_seed(seed)
    mixtures = Mixtures(
        [torch.tensor(pool.samples, device=device) for pool in pools], audio, settings, generator
    )
    plain = TrainingSettings(
        batch_size=32, seconds=4.0, level_db=0.0, equaliser_db=0.0, semitones=0
    )
    checks = Mixtures(
        [torch.tensor(p.samples) for p in held_out], audio, plain, torch.Generator().manual_seed(0)
    ).draw()
    width = WIDTH["cuda" if device.startswith("cuda") else "cpu"]
    network = MaskNetwork(STFT.n_bins, len(condition.names), width).to(device)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    best, best_state, next_check, n_updates = -math.inf, network.state_dict(), 0.0, 0

    def share() -> float:
        if budget.n_updates is not None:
            return n_updates / budget.n_updates
        return (time.perf_counter() - begin) / (60 * budget.minutes)

    def check() -> float:
        with torch.no_grad():
            scores = [
                si_sdr_of_masks(network(part.sum(dim=1).abs()), part)
                for part in torch.split(checks.to(device), 8)
            ]
        return float(torch.cat(scores).mean())

    while (done := share()) < 1:
        for group in adam.param_groups:
            group["lr"] = (
                1e-3 * min(1.0, (n_updates + 1) / 20) * 0.5 * (1 + math.cos(math.pi * done))
            )
        sources = mixtures.draw()
        loss = negative_si_sdr(network(sources.sum(dim=1).abs()), sources)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        adam.step()
        n_updates += 1
        if done >= next_check:
            next_check += 1 / N_CHECKS
            if (value := check()) > best:
                best, best_state = value, copy.deepcopy(network.state_dict())
    if check() > best:
        best_state = network.state_dict()
    network.load_state_dict(best_state)
    network = network.cpu().eval()

    def separate(mixture: np.ndarray) -> dict[str, Any]:
        spectra = STFT.forward(mixture.astype(np.float32))
        with torch.no_grad():
            masks = network(torch.tensor(np.abs(spectra))[None])[0].numpy()
        stems = [STFT.inverse(mask * spectra, len(mixture)) for mask in masks]
        return dict(zip(condition.names, stems, strict=True))

    return separate
