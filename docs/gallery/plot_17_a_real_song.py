"""
A real song, and its bass
=========================

A song of The Battle for Wesnoth (GPL-2+), from Debian's package ``wesnoth-1.16-music``, and
nothing but the song: its components are notes, and those below a frequency are the bass.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import ondes

recordings = Path(os.environ.get("ONDES_RECORDINGS", "build/recordings"))
song, sr = ondes.read(recordings / "music" / "wesnoth" / "transience.ogg")
song = song[8 * sr : 24 * sr]

# %%
# Frames of 80 ms distinguish the notes of a bass. The recording is short, so learning makes twenty
# passes over it.

dictionary = ondes.learn(
    song, 24, sr=22050, n_fft=1764, spectrum="power", sparsity=0, n_passes=20
)  # fmt: skip
hertz = np.linspace(0, 11025, dictionary.components.shape[1])
loudest = hertz[dictionary.components.argmax(axis=1)]
order = loudest.argsort()

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
spectra = 10 * np.log10(dictionary.components[order].T + 1e-6)
axes.pcolormesh(np.arange(25), hertz, spectra[:-1], vmin=-50, vmax=-5, cmap="magma")
axes.set(yscale="symlog", ylim=(40, 5000), xlabel="component", ylabel="Hz")
plt.show()

# %%
# The components whose loudest frequency is below 220 Hz are one source, all others the rest. Both
# sum to the song.

bass = np.flatnonzero(loudest < 220).tolist()
stems = ondes.separate(song, ondes.Sources.from_components(dictionary, {"bass": bass}), sr=sr)
players = {"song": (song, sr)} | {name: (stem, sr) for name, stem in stems.items()}
print(f"{len(bass)} components, {np.mean(stems['bass'] ** 2) / np.mean(song**2):.0%} of the power")
