"""Training a separator from recordings of each source: an unfolded solver and its decoder.

The dictionaries that `ondes.learn` finds are the start. The solver's steps become layers, a decoder
turns activations into each source's magnitudes, and all of it is trained on random mixtures of the
recordings (Hershey, Le Roux and Weninger 2014; Wisdom et al. 2017). PyTorch is needed here and
nowhere else: what is trained runs in NumPy, see `ondes.nmf.unfolded`. Where a separator that comes
with ondes has one of the sources, it is the start instead (`band_network`).
"""
