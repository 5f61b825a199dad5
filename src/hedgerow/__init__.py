"""Hedgerow: federated, differentially private gradient-boosted trees.

The public names are loaded on first use, so that ``hedgerow --help`` and a node start without the estimators.
"""

__version__ = "0.1.0"
