"""
Find bird calls under the wind
==============================

With one dictionary of the background and one of the call, separation shows when the call sounds,
even if it is quieter than the wind.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.scene import make_scene

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
# The share of the call in the power of its frequency band, 2.5 to 5 kHz, averaged over six frames.
# The share is not zero where there is only wind, so the threshold lies halfway between the median
# and the highest share.

stft = ondes.Stft(n_fft=1024, hop_length=735)
low, high = (int(hertz * 1024 / sr) for hertz in (2500, 5000))
power = {name: stft.power(stem)[:, low:high].sum(axis=1) for name, stem in stems.items()}
share = power["call"] / (power["call"] + power["wind"] + 1e-9)
share = np.convolve(share, np.ones(6) / 6, mode="same")
times = np.arange(len(share)) * 735 / sr
threshold = 0.5 * (np.median(share) + share.max())
loud = share > threshold
events = times[1:][np.diff(loud.astype(int)) == 1]
hits = sum(np.abs(true_starts - event).min() < 0.4 for event in events)
print(f"{len(true_starts)} calls, {len(events)} events found, {hits} of them true")

figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
axes.plot(times, share)
axes.plot(true_starts, np.zeros(12), "|", color="black", markersize=14, label="a call begins")
axes.axhline(threshold, color="tab:red", linewidth=0.8, label="threshold")
axes.set(xlabel="seconds", ylabel="share of the call")
axes.legend(loc="upper right")
plt.show()

first = int(max(true_starts[0] - 1, 0) * sr)
players = {
    "field recording, 6 s": (field[first : first + 6 * sr], sr),
    "the call, separated": (stems["call"][first : first + 6 * sr], sr),
}
