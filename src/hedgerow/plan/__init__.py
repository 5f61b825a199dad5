"""The plan: what all parties agree on before a run."""
