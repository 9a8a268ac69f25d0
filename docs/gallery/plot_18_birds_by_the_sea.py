"""
Real birds by the sea
=====================

Birds and the sound of the sea from The Battle for Wesnoth (GPL-2+), in Debian's package
``wesnoth-1.16-data``: one dictionary of other birds, one of the sea, and birds that neither knows.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.scores import si_sdr

folder = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings")) / "noise" / "wesnoth"


def heard(name):
    """A recording in mono."""
    samples, sr = ondes.read(folder / f"{name}.ogg")
    return (samples if samples.ndim == 1 else samples.mean(axis=1)), sr


(birds, sr), (sea, _) = heard("birds3"), heard("ship")
others = [heard(name)[0] for name in ("birds1", "birds2")]

# %%
# The second half of the sea is in the mixture, as loud as the birds; the first is learned from.

half = len(sea) // 2
n = min(len(birds), half)
truth = {"birds": birds[:n], "sea": sea[half : half + n] * np.std(birds[:n]) / np.std(sea[half:])}
mixture = truth["birds"] + truth["sea"]
settings = {"sr": 22050, "n_fft": 1024, "n_passes": 5}
dictionaries = {
    "birds": ondes.learn(np.concatenate(others), 32, **settings),
    "sea": ondes.learn(sea[:half], 16, **settings),
}

# %%
# The birds are other birds, yet their spectra are nearer to birds than to the sea.

stems = ondes.separate(mixture, dictionaries, sr=sr)
players = {"mixture": (mixture, sr)} | {name: (stem, sr) for name, stem in stems.items()}

figure, axes = plt.subplots(figsize=(7, 1.8), layout="constrained")
scores = [si_sdr(truth[name], stems[name]) for name in stems]
axes.barh(list(stems), scores, color="tab:blue", label="separated")
axes.barh(list(stems), [si_sdr(truth[name], mixture) for name in stems], height=0.3,
          color="tab:gray", label="the mixture")  # fmt: skip
axes.set(xlabel="SI-SDR in dB")
axes.legend()
plt.show()
