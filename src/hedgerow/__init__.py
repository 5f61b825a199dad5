# SPDX-License-Identifier: Apache-2.0
"""Hedgerow: federated, differentially private gradient-boosted trees.

The public names are loaded on first use, so that ``hedgerow --help`` and a node start without the estimators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hedgerow.app.environments import Federation, Processes, Simulation, Study
    from hedgerow.app.survey import SurveyOptions, survey_over_tables
    from hedgerow.data.site_data import read_site_data, read_sites_data
    from hedgerow.errors import HedgerowError
    from hedgerow.estimators.boosted import DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival
    from hedgerow.estimators.linear import DPLinearClassifier, DPLinearRegressor
    from hedgerow.estimators.tuning import tune
    from hedgerow.local.forecast import forecast
    from hedgerow.local.training import evaluate_federated, train
    from hedgerow.models.model import Model
    from hedgerow.plan.plan import Plan, parse_plan
    from hedgerow.privacy.noise import SeededNoise, SystemNoise
    from hedgerow.privacy.report import PrivacyReport
    from hedgerow.training.presets import apply_preset, find_preset

from hedgerow.plan import registry

__version__ = "0.2.0"

__all__ = [
    "DPGBDTClassifier",
    "DPGBDTRegressor",
    "DPGBDTSurvival",
    "DPLinearClassifier",
    "DPLinearRegressor",
    "Federation",
    "HedgerowError",
    "Model",
    "Plan",
    "PrivacyReport",
    "Processes",
    "SeededNoise",
    "Simulation",
    "Study",
    "SurveyOptions",
    "SystemNoise",
    "__version__",
    "apply_preset",
    "evaluate_federated",
    "find_preset",
    "forecast",
    "parse_plan",
    "read_site_data",
    "read_sites_data",
    "survey_over_tables",
    "train",
    "tune",
]

_HOME = {
    "DPGBDTClassifier": "hedgerow.estimators.boosted",
    "DPGBDTRegressor": "hedgerow.estimators.boosted",
    "DPGBDTSurvival": "hedgerow.estimators.boosted",
    "DPLinearClassifier": "hedgerow.estimators.linear",
    "DPLinearRegressor": "hedgerow.estimators.linear",
    "Federation": "hedgerow.app.environments",
    "HedgerowError": "hedgerow.errors",
    "Model": "hedgerow.models.model",
    "Plan": "hedgerow.plan.plan",
    "PrivacyReport": "hedgerow.privacy.report",
    "Processes": "hedgerow.app.environments",
    "SeededNoise": "hedgerow.privacy.noise",
    "Simulation": "hedgerow.app.environments",
    "Study": "hedgerow.app.environments",
    "SurveyOptions": "hedgerow.app.survey",
    "SystemNoise": "hedgerow.privacy.noise",
    "apply_preset": "hedgerow.training.presets",
    "evaluate_federated": "hedgerow.local.training",
    "find_preset": "hedgerow.training.presets",
    "forecast": "hedgerow.local.forecast",
    "parse_plan": "hedgerow.plan.plan",
    "read_site_data": "hedgerow.data.site_data",
    "read_sites_data": "hedgerow.data.site_data",
    "survey_over_tables": "hedgerow.app.survey",
    "train": "hedgerow.local.training",
    "tune": "hedgerow.estimators.tuning",
}
"""The module of each public name."""


def _load_kinds() -> None:
    """Plans stand below losses and methods, whose labels and sections they read."""
    import hedgerow.losses.registry
    import hedgerow.methods.registry  # noqa: F401


registry.on_first_use(_load_kinds)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOME[name]), name)
    except ImportError as absent:
        from hedgerow.errors import OPTIONAL, missing_extra

        module = (absent.name or "").partition(".")[0]
        if module not in OPTIONAL:
            raise
        raise missing_extra(module, f"hedgerow.{name}") from absent
    except RuntimeError as fault:
        from hedgerow.errors import explain_kernel_error

        if (known := explain_kernel_error(fault)) is None:
            raise
        raise known from fault
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
