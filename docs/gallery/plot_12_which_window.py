"""
How long should a frame be?
===========================

Long frames resolve pitch, short frames resolve time. Try it with your own kind of sound.
"""

import matplotlib.pyplot as plt

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr

training, tune = make_scene(16, random_state=1), make_scene(8, random_state=0)
sr = tune.sr
lengths = [256, 512, 1024, 2048, 4096, 8192]
scores = []
for length in lengths:
    models = {
        name: ondes.learn(stem, 16, sr=sr, n_fft=length, n_passes=2)
        for name, stem in training.stems.items()
    }
    stems = ondes.separate(tune.mixture, models, sr=sr)
    scores.append([si_sdr(stem, stems[name]) for name, stem in tune.stems.items()])

# %%
# No length is best for all instruments. Below 20 ms all of them lose, because low pitches cannot be
# resolved. The bass gains from very long frames, the wind loses. Long frames suit synthetic drums,
# which repeat exactly; real drums do not repeat exactly. Conditions: 16 s of synthetic sound per
# instrument, 22050 Hz, 16 components per source, 2 passes.

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.semilogx([1000 * length / sr for length in lengths], scores, "o-", label=list(tune.stems))
axes.set(xlabel="length of a frame in ms", ylabel="SI-SDR in dB")
axes.legend()
plt.show()
