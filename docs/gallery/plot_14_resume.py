"""
Stop, and continue later with the same result
=============================================

A dictionary that was saved can continue learning exactly where it stopped. The statistics of two
parts of a stream can be computed separately and added.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene

first, second = (make_scene(6, random_state=seed).mixture for seed in range(2))
settings = {"sr": 22050, "n_fft": 1024, "n_components": 8}

# %%
# Either learn from both recordings in one process,

whole = ondes.learn(second, dictionary=ondes.learn(first, **settings))

# %%
# or save the dictionary in between, and load it in another process.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "half.ondes")
    ondes.learn(first, **settings).save(path)
    halves = ondes.learn(second, dictionary=ondes.load(path))

print("the same bits:", np.array_equal(whole.components, halves.components))

# %%
# Statistics can be added, so they can be computed in other threads or on other machines.

frames = ondes.Stft(n_fft=1024).power(first)
model = ondes.OnlineNMF(8, random_state=0).partial_fit(frames)
together = model.summarise(frames)
apart = model.summarise(frames[:200]) + model.summarise(frames[200:])
print("the same sums:", np.allclose(together.numerator, apart.numerator, rtol=1e-6))

# %%
# The mean of the components after six seconds, and after all twelve.

half = ondes.learn(first, **settings)
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
for name, dictionary in {"6 s": half, "12 s": whole}.items():
    hertz = np.arange(dictionary.audio.n_bins) * 22050 / 1024
    axes.semilogy(hertz, dictionary.components.mean(axis=0), label=name)
axes.set(xlabel="Hz", ylabel="mean of the spectra")
axes.legend()
plt.show()
