"""
Remove noise that can be heard alone
====================================

In the first two seconds only wind is heard. That is enough to reduce it everywhere.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr

scene = make_scene(seconds=9, random_state=5)
sr = scene.sr
music = scene.stems["strings"] + scene.stems["bass"]
music[: 2 * sr] = 0
noisy = music + 2 * scene.stems["wind"]

# %%
# Without a dictionary, the mean spectrum of the noise is subtracted.

plain = ondes.denoise(noisy, sr, noise=(0.0, 2.0))

# %%
# With a dictionary of the sound to keep, learned from another recording, a noise whose loudness
# changes is reduced further.

training = make_scene(seconds=16, random_state=6).stems
kept = ondes.learn(training["strings"] + training["bass"], 32, sr=sr, n_fft=2048, n_passes=3)
better = ondes.denoise(noisy, sr, noise=(0.0, 2.0), speech=kept)
for name, sound in {"noisy": noisy, "plain": plain, "with a dictionary": better}.items():
    print(f"{name}: {si_sdr(music, sound):.1f} dB")

players = {"noisy": (noisy, sr), "plain": (plain, sr), "with a dictionary": (better, sr)}

# %%
# The level over time. The noise of the first two seconds is removed, and the music is kept.

figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for name, sound in {"noisy": noisy, "plain": plain, "with a dictionary": better}.items():
    blocks = sound[: len(sound) // 2205 * 2205].reshape(-1, 2205)
    axes.plot(
        np.arange(len(blocks)) / 10, 10 * np.log10(np.mean(blocks**2, axis=1) + 1e-9), label=name
    )
axes.set(xlabel="seconds", ylabel="level in dB", ylim=(-75, None))
axes.legend()
plt.show()
