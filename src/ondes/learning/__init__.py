"""Training: the loop from batches to updates, its history, its checkpoints, and how it stops."""
