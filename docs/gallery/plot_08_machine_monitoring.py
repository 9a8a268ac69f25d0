"""
Notice that a machine sounds different
======================================

Learn the sound of a machine in good condition. When a later recording has a higher divergence, the
machine sounds different.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes

sr = 8000
rng = np.random.default_rng(1)


def machine(seconds, worn=0.0):
    """A hum with harmonics, the noise of a fan, and a bearing that clicks if it is worn."""
    time = np.arange(int(seconds * sr)) / sr
    hum = sum(np.sin(2 * np.pi * 50 * k * time + k) / k for k in range(1, 8))
    fan = np.convolve(rng.standard_normal(len(time)), np.ones(8) / 8, mode="same")
    clicks = np.zeros(len(time))
    clicks[rng.integers(0, len(time) - 200, int(7 * seconds))] = 1
    ringing = np.exp(-np.arange(160) / 25) * np.sin(2 * np.pi * 2700 * np.arange(160) / sr)
    return (0.3 * hum + 0.4 * fan + worn * np.convolve(clicks, ringing, mode="same")).astype(
        np.float32
    )


# %%
# Itakura-Saito on power spectra weights quiet detail as much as loud. Faults are quiet at first.

healthy = ondes.learn(
    machine(60), 8, sr=sr, n_fft=512, spectrum="power", beta_loss="itakura-saito", sparsity=0.0
)

# %%
# Five seconds of every hour of one day. From hour 14 on, the bearing wears out.

wear = [0.0] * 14 + [0.2 * step for step in range(1, 11)]
hours = [machine(5, worn) for worn in wear]
divergences = []
for hour in hours:
    frames = healthy.audio.frames(hour)
    divergences.append(-healthy.estimator.score(frames))
divergences = np.array(divergences)
normal = divergences[:12]
limit = normal.mean() + 5 * normal.std()
alarm = int(np.argmax(divergences > limit))
print(f"alarm at hour {alarm}")

figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
axes.plot(divergences, "o-")
axes.axhline(
    limit, color="tab:red", linewidth=0.8, label="mean + 5 standard deviations of the first 12 h"
)
axes.axvspan(14, 23, alpha=0.1, label="the bearing wears")
axes.set(xlabel="hour", ylabel="divergence per bin")
axes.legend()
plt.show()

players = {"hour 3": (hours[3], sr), "hour 23": (hours[23], sr)}
