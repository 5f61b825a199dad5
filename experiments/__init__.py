"""Experiments: the tables, figures and benchmarks, each run by ``python -m hedgerow.experiments NAME``."""
