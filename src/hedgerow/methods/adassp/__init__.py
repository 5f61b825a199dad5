"""Boosted linear models by AdaSSP."""
