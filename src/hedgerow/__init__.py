"""Hedgerow: federated, differentially private gradient-boosted trees.

The public names are loaded on first use, so that ``hedgerow --help`` and a node start without the estimators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hedgerow.estimators import DPGBDTClassifier, DPGBDTRegressor
    from hedgerow.forecasting import forecast
    from hedgerow.linear_estimators import DPLinearClassifier, DPLinearRegressor
    from hedgerow.local_training import train
    from hedgerow.model import Model
    from hedgerow.privacy.noise import SeededNoise, SystemNoise
    from hedgerow.privacy.report import PrivacyReport
    from hedgerow.protocol.errors import HedgerowError
    from hedgerow.protocol.plan import Plan, parse_plan
    from hedgerow.site_data import read_site_data, read_sites_data

__version__ = "0.1.0"

__all__ = [
    "DPGBDTClassifier",
    "DPGBDTRegressor",
    "DPLinearClassifier",
    "DPLinearRegressor",
    "HedgerowError",
    "Model",
    "Plan",
    "PrivacyReport",
    "SeededNoise",
    "SystemNoise",
    "__version__",
    "forecast",
    "parse_plan",
    "read_site_data",
    "read_sites_data",
    "train",
]

_HOME = {
    "DPGBDTClassifier": "hedgerow.estimators",
    "DPGBDTRegressor": "hedgerow.estimators",
    "DPLinearClassifier": "hedgerow.linear_estimators",
    "DPLinearRegressor": "hedgerow.linear_estimators",
    "HedgerowError": "hedgerow.protocol.errors",
    "Model": "hedgerow.model",
    "Plan": "hedgerow.protocol.plan",
    "PrivacyReport": "hedgerow.privacy.report",
    "SeededNoise": "hedgerow.privacy.noise",
    "SystemNoise": "hedgerow.privacy.noise",
    "forecast": "hedgerow.forecasting",
    "parse_plan": "hedgerow.protocol.plan",
    "read_site_data": "hedgerow.site_data",
    "read_sites_data": "hedgerow.site_data",
    "train": "hedgerow.local_training",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOME[name]), name)
    except ImportError as absent:
        from hedgerow.protocol.errors import OPTIONAL, missing_extra

        module = (absent.name or "").partition(".")[0]
        if module not in OPTIONAL:
            raise
        raise missing_extra(module, f"hedgerow.{name}") from absent
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
