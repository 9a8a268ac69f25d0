"""
Which divergence, how sparse, how many passes?
==============================================

Three more settings, compared on one synthetic tune.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr

training, tune = make_scene(12, random_state=1), make_scene(8, random_state=0)
sr = tune.sr


def mean_score(**settings):
    """Mean SI-SDR of the four sources, with dictionaries learned with these settings."""
    settings = {"n_passes": 2} | settings
    models = {
        name: ondes.learn(stem, 16, sr=sr, n_fft=2048, **settings)
        for name, stem in training.stems.items()
    }
    stems = ondes.separate(tune.mixture, models, sr=sr)
    return np.mean([si_sdr(stem, stems[name]) for name, stem in tune.stems.items()])


kinds = {
    "Itakura-Saito, power": {"beta_loss": "itakura-saito", "spectrum": "power", "sparsity": 0.0},
    "Kullback-Leibler, magnitude": {"beta_loss": "kullback-leibler", "sparsity": 0.0},
    "… with sparsity 2": {"beta_loss": "kullback-leibler", "sparsity": 2.0},
}
passes = [1, 2, 4, 8]
sparsities = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]

# %%
# Conditions: 12 s of synthetic sound per instrument, 22050 Hz, frames of 2048 samples, 16
# components per source. Many passes over a few seconds overfit to them, and gain nothing for
# another tune. With hours of recordings one pass is enough, because new sound keeps coming.

figure, (first, second, third) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
first.barh(list(kinds), [mean_score(**kind) for kind in kinds.values()])
first.invert_yaxis()
first.set(xlabel="mean SI-SDR in dB", title="divergence")
second.plot(sparsities, [mean_score(sparsity=each) for each in sparsities], "o-")
second.set(xlabel="sparsity", title="sparsity")
third.plot(passes, [mean_score(n_passes=each) for each in passes], "o-")
third.set(xlabel="passes", title="passes over 12 s")
plt.show()
