# SPDX-License-Identifier: Apache-2.0
"""Hedgerow: federated, differentially private gradient-boosted trees.

The public names are loaded on first use, so that ``hedgerow --help`` and a node start without the estimators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hedgerow.app.environments import Federation as Federation
    from hedgerow.app.environments import Processes as Processes
    from hedgerow.app.environments import Simulation as Simulation
    from hedgerow.app.environments import Study as Study
    from hedgerow.app.survey import SurveyOptions as SurveyOptions
    from hedgerow.app.survey import survey_over_tables as survey_over_tables
    from hedgerow.data.cells import CellsWarning as CellsWarning
    from hedgerow.data.cells import TextColumnsWarning as TextColumnsWarning
    from hedgerow.data.site_data import read_site_data as read_site_data
    from hedgerow.data.site_data import read_sites_data as read_sites_data
    from hedgerow.data.units import LostRowsWarning as LostRowsWarning
    from hedgerow.errors import HedgerowError as HedgerowError
    from hedgerow.estimators.base import FewRecordsWarning as FewRecordsWarning
    from hedgerow.estimators.base import SeveralRunsWarning as SeveralRunsWarning
    from hedgerow.estimators.boosted import DPGBDTClassifier as DPGBDTClassifier
    from hedgerow.estimators.boosted import DPGBDTRegressor as DPGBDTRegressor
    from hedgerow.estimators.boosted import DPGBDTSurvival as DPGBDTSurvival
    from hedgerow.estimators.boosted import LabelInFeaturesWarning as LabelInFeaturesWarning
    from hedgerow.estimators.linear import DPLinearClassifier as DPLinearClassifier
    from hedgerow.estimators.linear import DPLinearRegressor as DPLinearRegressor
    from hedgerow.estimators.tuning import tune as tune
    from hedgerow.local.accounts import budget as budget
    from hedgerow.local.forecast import forecast as forecast
    from hedgerow.models.model import Model as Model
    from hedgerow.models.model import RenamedWarning as RenamedWarning
    from hedgerow.plan.plan import Plan as Plan
    from hedgerow.plan.plan import parse_plan as parse_plan
    from hedgerow.privacy.noise import SeededNoise as SeededNoise
    from hedgerow.privacy.noise import SystemNoise as SystemNoise
    from hedgerow.privacy.report import PrivacyReport as PrivacyReport
    from hedgerow.training.presets import apply_preset as apply_preset
    from hedgerow.training.presets import find_preset as find_preset

from hedgerow.plan import registry
from hedgerow.version import __version__ as __version__

_HOME = {
    "CellsWarning": "hedgerow.data.cells",
    "DPGBDTClassifier": "hedgerow.estimators.boosted",
    "DPGBDTRegressor": "hedgerow.estimators.boosted",
    "DPGBDTSurvival": "hedgerow.estimators.boosted",
    "DPLinearClassifier": "hedgerow.estimators.linear",
    "DPLinearRegressor": "hedgerow.estimators.linear",
    "Federation": "hedgerow.app.environments",
    "FewRecordsWarning": "hedgerow.estimators.base",
    "HedgerowError": "hedgerow.errors",
    "LabelInFeaturesWarning": "hedgerow.estimators.boosted",
    "LostRowsWarning": "hedgerow.data.units",
    "Model": "hedgerow.models.model",
    "Plan": "hedgerow.plan.plan",
    "PrivacyReport": "hedgerow.privacy.report",
    "Processes": "hedgerow.app.environments",
    "RenamedWarning": "hedgerow.models.model",
    "SeededNoise": "hedgerow.privacy.noise",
    "SeveralRunsWarning": "hedgerow.estimators.base",
    "Simulation": "hedgerow.app.environments",
    "Study": "hedgerow.app.environments",
    "SurveyOptions": "hedgerow.app.survey",
    "SystemNoise": "hedgerow.privacy.noise",
    "TextColumnsWarning": "hedgerow.data.cells",
    "apply_preset": "hedgerow.training.presets",
    "budget": "hedgerow.local.accounts",
    "find_preset": "hedgerow.training.presets",
    "forecast": "hedgerow.local.forecast",
    "parse_plan": "hedgerow.plan.plan",
    "read_site_data": "hedgerow.data.site_data",
    "read_sites_data": "hedgerow.data.site_data",
    "survey_over_tables": "hedgerow.app.survey",
    "tune": "hedgerow.estimators.tuning",
}
"""The module of each public name."""

__all__ = sorted(["__version__", *_HOME])


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
    return __all__
