"""
Learn from a stream
===================

``partial_fit`` takes frames as they come, once. How the past fades decides how good the dictionary
is by then.
"""

import matplotlib.pyplot as plt
import numpy as np

import ondes
from ondes.scene import make_scene

# %%
# Frames of a minute of music, in blocks as a microphone would give them, and others to judge by.

stft = ondes.Stft(n_fft=1024)
stream = stft.power(make_scene(60, random_state=2).mixture)
held_out = stft.power(make_scene(8, random_state=9).mixture)
blocks = np.array_split(stream, 30)

# %%
# ``GrowingMemory(p)`` weighs a frame by (its number / all so far) to the power p. A young
# dictionary forgets its bad start at once, an old one averages over more and more frames. The
# default is p = 200, which is made for hours and for several passes. ``HalfLife`` forgets at a
# constant rate, which follows a sound that changes.

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
# For one pass over a minute of sound that does not change, a longer memory is better.
