"""
Learn from a stream
===================

``partial_fit`` takes frames as they arrive, each of them once. The forgetting rule, which gives old
frames less weight than new ones, affects how good the dictionary becomes.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.demo_scene import make_scene

# %%
# Frames of one minute of music, in blocks as from a microphone, and held-out frames to score with.

stft = ondes.Stft(n_fft=1024)
stream = stft.power(make_scene(60, random_state=2).mixture)
held_out = stft.power(make_scene(8, random_state=9).mixture)
blocks = np.array_split(stream, 30)

# %%
# ``GrowingMemory(p)`` gives frame s the weight (s / t) to the power p after t frames. At first the
# memory is short, so the poor start of the dictionary is forgotten quickly; later it becomes
# longer, so the dictionary averages over more and more frames. The default p = 200 is made for
# hours of sound and for several passes. ``HalfLife`` forgets at a constant rate, which suits a
# sound that changes.

rules = {
    "GrowingMemory(), the default": ondes.GrowingMemory(),
    "GrowingMemory(20)": ondes.GrowingMemory(20),
    "HalfLife(500)": ondes.HalfLife(500),
}
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, rule in rules.items():
    model = ondes.OnlineNMF(16, forgetting=rule, random_state=0)
    curve = [-model.partial_fit(block).score(held_out) for block in blocks]
    axes.plot(2 * np.arange(1, 31), curve, label=name)
    print(f"{name}: {curve[-1]:.3f}")
axes.set(xlabel="seconds of the stream", ylabel="held-out divergence per bin")
axes.legend()
plt.show()

# %%
# For one pass over one minute of sound that does not change, a longer memory (a smaller p) is
# better.
