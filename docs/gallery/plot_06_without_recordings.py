"""
Nothing but the mixture
=======================

``ondes.discover_sources`` learns the sources of a recording from that recording alone, and groups
components that are active together. It works for some mixtures and not for others: listen before
you rely on it.
"""

import matplotlib.pyplot as plt

import ondes
from ondes.demo_scene import make_scene
from ondes.scores import si_sdr

scene = make_scene(seconds=12, random_state=3)
sr = scene.sr


def separate_blindly(names):
    """The mixture of two stems, the two found sources, and how close each is to its stem."""
    parts = [scene.stems[name] for name in names]
    mixture = sum(parts)
    found = ondes.discover_sources(mixture, 2, sr=sr, n_components=12, n_passes=5)
    first, second = ondes.separate(mixture, found, sr=sr).values()
    # A listener would have to say which is which. Here the stems are known: take the better order.
    orders = [(first, second), (second, first)]
    scores = [[si_sdr(*pair) for pair in zip(parts, order, strict=True)] for order in orders]
    better = max(range(2), key=lambda n: sum(scores[n]))
    return mixture, orders[better], scores[better]


# %%
# Strings and drums are active at different moments and have different spectra.

mixture, found, strings_and_drums = separate_blindly(("strings", "drums"))
players = {
    "mixture": (mixture, sr),
    "found: strings": (found[0], sr),
    "found: drums": (found[1], sr),
}

# %%
# The bass and the kick drum have the same lowest frequencies, and sound at the same time.

mixture, found, bass_and_drums = separate_blindly(("bass", "drums"))
players = {"mixture": (mixture, sr), "found: bass": (found[0], sr), "found: drums": (found[1], sr)}

# %%
# The first mixture is separated, the second is not. The mixture itself is near 0 dB.

figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
labels = ["strings", "drums", "bass", "drums (with bass)"]
axes.barh(labels, strings_and_drums + bass_and_drums, color=["tab:blue"] * 2 + ["tab:red"] * 2)
axes.axvline(0, color="black", linewidth=0.8)
axes.invert_yaxis()
axes.set(xlabel="SI-SDR in dB")
plt.show()
