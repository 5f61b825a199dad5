"""Training and evaluation in one process."""
