"""
Separate four instruments
=========================

Learn one dictionary per instrument from one tune, and take another tune apart.
"""

import matplotlib.pyplot as plt

import ondes
from ondes.scene import make_scene
from ondes.scores import si_sdr

# %%
# Two tunes by the same four instruments. The first is to learn from, the second to be separated.

training = make_scene(seconds=16, random_state=1)
tune = make_scene(seconds=8, random_state=0)

# %%
# One dictionary per instrument, of 16 spectra each. A short recording is visited several times.

settings = {"sr": tune.sr, "n_fft": 2048, "n_passes": 5}
dictionaries = {name: ondes.learn(stem, 16, **settings) for name, stem in training.stems.items()}

# %%
# Separation gives one signal per dictionary. They sum to the mixture.

stems = ondes.separate(tune.mixture, dictionaries, sr=tune.sr)
players = {"mixture": (tune.mixture, tune.sr)}
players |= {name: (stem, tune.sr) for name, stem in stems.items()}

# %%
# SI-SDR tells in decibels how close a signal is to the true source: first the mixture itself, then
# what was separated.

before = [si_sdr(stem, tune.mixture) for stem in tune.stems.values()]
after = [si_sdr(stem, stems[name]) for name, stem in tune.stems.items()]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.barh(list(stems), after, color="tab:blue", label="separated")
axes.barh(list(stems), before, height=0.3, color="tab:gray", label="the mixture")
axes.set(xlabel="SI-SDR in dB")
axes.legend()
plt.show()
