"""
Only one source is known
========================

There are recordings of the strings, but not of the drums. The components of the drums are learned
from the mixture while it is separated: ``n_free`` in Python, ``--free`` on the command line.
"""

import matplotlib.pyplot as plt

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr

training, tune = make_scene(16, random_state=7), make_scene(12, random_state=8)
sr = tune.sr
mixture = tune.stems["strings"] + tune.stems["drums"]
strings = ondes.learn(training.stems["strings"], 24, sr=sr, n_fft=2048, n_passes=3)
drums = ondes.learn(training.stems["drums"], 24, sr=sr, n_fft=2048, n_passes=3)

results = {
    "two dictionaries": ondes.separate(mixture, {"strings": strings, "rest": drums}, sr=sr),
    "one, and 8 free": ondes.separate(mixture, {"strings": strings}, sr=sr, n_free=8),
}

# %%
# The free components also explain some of the strings. Expect less than with a dictionary of each
# source.

scores = {name: si_sdr(tune.stems["strings"], stems["strings"]) for name, stems in results.items()}
scores = {"the mixture": si_sdr(tune.stems["strings"], mixture)} | scores
figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
axes.barh(list(scores), list(scores.values()))
axes.set(xlabel="SI-SDR of the strings in dB")
axes.invert_yaxis()
plt.show()

players = {"mixture": (mixture, sr)}
players |= {name: (stems["strings"], sr) for name, stems in results.items()}
