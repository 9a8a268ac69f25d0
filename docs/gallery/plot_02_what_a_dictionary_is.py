"""
What a dictionary is
====================

The spectra that were learned from one instrument, and when each of them is active.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene

scene = make_scene(seconds=8)
bass = scene.stems["bass"]
dictionary = ondes.learn(bass, 8, sr=scene.sr, n_fft=4096, n_passes=5)
activations = dictionary.transform(bass)
print("spectra:", dictionary.components.shape, "activations:", activations.shape)

# %%
# Each row of ``components`` is a spectrum that sums to one. Here the rows are sorted by their
# strongest frequency: they are the notes of the bass line, from low to high.

order = np.argsort(np.argmax(dictionary.components, axis=1))
n_bins = 150
hertz = np.arange(n_bins) * scene.sr / 4096

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.pcolormesh(
    hertz, np.arange(8), np.sqrt(dictionary.components[order, :n_bins]), shading="nearest"
)
left.set(xlabel="Hz", ylabel="component", title="the spectra")
seconds = np.arange(len(activations)) * 1024 / scene.sr
right.pcolormesh(seconds, np.arange(8), np.sqrt(activations[:, order].T), shading="nearest")
right.set(xlabel="seconds", title="their activations")
plt.show()

# %%
# This is the sound that the dictionary was learned from:

players = {"bass": (bass, scene.sr)}
