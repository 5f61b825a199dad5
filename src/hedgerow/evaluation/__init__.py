"""Evaluation of a model over sites, as a program."""
