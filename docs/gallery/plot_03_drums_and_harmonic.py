"""
Drums against everything else
=============================

Two dictionaries, one of drums and one of harmonic instruments, split a mixture in two.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr


def two_parts(scene):
    """The drums, and everything that has a pitch."""
    return {"drums": scene.stems["drums"], "harmonic": scene.stems["strings"] + scene.stems["bass"]}


training, tune = two_parts(make_scene(16, random_state=3)), two_parts(make_scene(8, random_state=4))
sr = 22050
mixture = sum(tune.values())
models = {
    name: ondes.learn(part, 24, sr=sr, n_fft=2048, n_passes=3) for name, part in training.items()
}
stems = ondes.separate(mixture, models, sr=sr)
for name, stem in stems.items():
    print(f"{name}: {si_sdr(tune[name], mixture):.1f} dB -> {si_sdr(tune[name], stem):.1f} dB")

players = {"mixture": (mixture, sr)} | {name: (stem, sr) for name, stem in stems.items()}

# %%
# In a spectrogram, drums are vertical lines and strings are horizontal lines.

figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
stft = ondes.Stft(n_fft=1024)
for axis, (name, sound) in zip(axes, {"mixture": mixture, **stems}.items(), strict=True):
    decibels = 10 * np.log10(stft.power(sound) + 1e-6)
    axis.imshow(
        decibels.T,
        origin="lower",
        aspect="auto",
        vmin=-20,
        vmax=35,
        extent=(0, len(sound) / sr, 0, sr / 2000),
    )
    axis.set(title=name, xlabel="seconds")
axes[0].set(ylabel="kHz")
plt.show()
