"""Online NMF of nonnegative frames; independent of files and of sound."""
