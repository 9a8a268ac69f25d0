"""Weights of train.py as a separator: python convert.py TALK.pt talk.ondes speech,music,effects."""

import sys

import numpy as np
import torch

from ondes.models.band_network import BandWeights
from ondes.models.trained_separator import TrainedSeparator
from ondes.signal.audio_settings import AudioSettings
from ondes.signal.stft import Stft


def main() -> None:
    path, output, names = sys.argv[1:]
    saved = torch.load(path, map_location="cpu")
    arrays = {k: v.float().numpy().astype(np.float16) for k, v in saved["state"].items()}

    def group(name: str) -> tuple:
        return tuple(arrays[f"{name}.{n}"] for n in range(len(saved["settings"]["groups"])))

    def sweeps(name: str) -> np.ndarray:
        return np.stack([arrays[f"{name}.{n}"] for n in range(saved["settings"]["L"])])

    weights = BandWeights(
        group("embed"),
        arrays["place"],
        *(sweeps(name) for name in ("into", "bias", "back")),
        *(group(name) for name in ("hidden", "hidden_bias", "mask", "mask_bias")),
    )
    audio = AudioSettings(16000, Stft(1920, 480), spectrum="magnitude", fmax=7195.0)
    TrainedSeparator(tuple(names.split(",")), audio, weights).save(output, force=True)


if __name__ == "__main__":
    main()
