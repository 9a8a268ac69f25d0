"""
Separate four instruments
=========================

Learn one dictionary per instrument from one tune, and separate another tune with them.
"""

import matplotlib.pyplot as plt

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr

# %%
# Two synthetic tunes with the same four instruments: one to learn from, one to separate.

training = make_scene(seconds=16, random_state=1)
tune = make_scene(seconds=8, random_state=0)

# %%
# One dictionary per instrument, of 16 components each. The recordings are short, so learning makes
# five passes over them.

settings = {"sr": tune.sr, "n_fft": 2048, "n_passes": 5}
dictionaries = {name: ondes.learn(stem, 16, **settings) for name, stem in training.stems.items()}

# %%
# Separation gives one signal per dictionary. They sum to the mixture.

stems = ondes.separate(tune.mixture, dictionaries, sr=tune.sr)
players = {"mixture": (tune.mixture, tune.sr)}
players |= {name: (stem, tune.sr) for name, stem in stems.items()}

# %%
# SI-SDR says in decibels how close a signal is to the true source. It is shown for the mixture
# itself, and for the separated stems.

before = [si_sdr(stem, tune.mixture) for stem in tune.stems.values()]
after = [si_sdr(stem, stems[name]) for name, stem in tune.stems.items()]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.barh(list(stems), after, color="tab:blue", label="separated")
axes.barh(list(stems), before, height=0.3, color="tab:gray", label="the mixture")
axes.set(xlabel="SI-SDR in dB")
axes.legend()
plt.show()
