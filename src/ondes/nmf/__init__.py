"""Learning: Itakura-Saito NMF of nonnegative frames. Knows no file and no sound."""
