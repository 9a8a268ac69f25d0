"""Weights of train.py as a separator, and back as the start of another training.

python convert.py TALK.pt talk.ondes speech,music,effects
python convert.py talk.ondes START.pt
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ondes import load
from ondes.models.band_network import BandWeights
from ondes.models.trained_separator import TrainedSeparator
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft

AUDIO = AudioSettings(16000, Stft(1920, 480), spectrum="magnitude", fmax=7195.0)
SWEEPS = {"inwards": "into", "bias": "bias", "outwards": "back"}
GROUPS = {
    "embedding": "embed", "hidden": "hidden", "hidden_bias": "hidden_bias",
    "mask": "mask", "mask_bias": "mask_bias",
}  # fmt: skip


def separator(saved: dict[str, Any], names: tuple[str, ...]) -> TrainedSeparator:
    """What train.py saved, in 16 bits."""
    state = {name: each.float().numpy().astype(np.float16) for name, each in saved["state"].items()}

    def listed(name: str) -> list[np.ndarray]:
        return [
            state[f"{name}.{n}"] for n in range(sum(key.startswith(f"{name}.") for key in state))
        ]

    sweeps = {own: np.stack(listed(name)) for own, name in SWEEPS.items()}
    groups = {own: tuple(listed(name)) for own, name in GROUPS.items()}
    return TrainedSeparator(names, AUDIO, BandWeights(place=state["place"], **sweeps, **groups))


def start(weights: BandWeights) -> dict[str, Any]:
    """What train.py takes as --start."""
    state = {"place": weights.place}
    for own, name in {**SWEEPS, **GROUPS}.items():
        state |= {f"{name}.{n}": each for n, each in enumerate(getattr(weights, own))}
    return {"state": {name: torch.tensor(each.astype(np.float32)) for name, each in state.items()}}


def main() -> None:
    source, output, *names = sys.argv[1:]
    if Path(source).suffix == ".ondes":
        torch.save(start(load(source).weights), output)
    else:
        saved = torch.load(source, map_location="cpu")
        separator(saved, tuple(names[0].split(","))).save(output, force=True)


if __name__ == "__main__":
    main()
