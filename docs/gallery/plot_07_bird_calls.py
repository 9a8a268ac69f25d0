"""
Find bird calls under the wind
==============================

With one dictionary of the background and one of the call, separation shows when the call sounds,
even if it is quieter than the wind.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene

sr = 22050
rng = np.random.default_rng(0)


def call(seconds=0.3, low=3000.0, high=4500.0):
    """A falling chirp."""
    time = np.arange(int(seconds * sr)) / sr
    hertz = high - (high - low) * time / seconds
    return np.sin(2 * np.pi * np.cumsum(hertz) / sr) * np.hanning(len(time))


def recording(seconds, starts, level):
    """Wind with calls in it."""
    sound = make_scene(seconds, sr, random_state=int(rng.integers(100))).stems["wind"].copy()
    for start in starts:
        chirp = level * call(low=rng.uniform(2800, 3200))
        sound[int(start * sr) :][: len(chirp)] += chirp.astype(np.float32)
    return sound


# %%
# A few calls that were recorded well, and a minute of field recording to search.

examples = np.concatenate([call(low=low) for low in np.linspace(2800, 3200, 12)]).astype(np.float32)
wind = recording(20, [], 0)
true_starts = np.sort(rng.uniform(1, 58, size=12))
field = recording(60, true_starts, level=0.08)

settings = {"sr": sr, "n_fft": 1024, "n_passes": 3}
models = {"call": ondes.learn(examples, 8, **settings), "wind": ondes.learn(wind, 16, **settings)}
stems = ondes.separate(field, models, sr=sr)

# %%
# The level of the call in every tenth of a second, as in the tutorial. Where there is only wind,
# the level is far below the threshold. Two of the twelve calls overlap, so they are one event.

block = sr // 10
blocks = stems["call"][: len(stems["call"]) // block * block].reshape(-1, block)
level = 10 * np.log10(np.mean(blocks**2, axis=1) + 1e-12)
times = np.arange(len(level)) * block / sr
threshold = -45
loud = level > threshold
events = times[1:][np.diff(loud.astype(int)) == 1]
hits = sum(np.abs(true_starts - event).min() < 0.4 for event in events)
print(f"{len(true_starts)} calls, {len(events)} events found, {hits} of them true")

figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
axes.plot(times, level)
axes.plot(true_starts, np.full(12, -20), "|", color="black", markersize=14, label="a call begins")
axes.axhline(threshold, color="tab:red", linewidth=0.8, label="threshold")
axes.set(xlabel="seconds", ylabel="level of the call in dB", ylim=(-90, -10))
axes.legend(loc=(0.33, 0.5))
plt.show()

first = int(max(true_starts[0] - 1, 0) * sr)
players = {
    "field recording, 6 s": (field[first : first + 6 * sr], sr),
    "the call, separated": (stems["call"][first : first + 6 * sr], sr),
}
