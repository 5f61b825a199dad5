"""Helpers for the node's tests: small plans, and files written as a careless export would write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.plan.plan import Plan

SickPlan = Callable[..., Plan]
WriteFile = Callable[[str, bytes], Path]


@pytest.fixture
def sick_plan() -> SickPlan:
    """A plan over columns age (numeric), sex (f, m) and the label sick (no, yes), with changes by section."""

    def build(**changes: Any) -> Plan:
        table: dict[str, Any] = {
            "version": 1,
            "features": [
                {"name": "age", "type": "numeric", "min": 0, "max": 120},
                {"name": "sex", "type": "categorical", "categories": ["f", "m"]},
            ],
            "label": {"name": "sick", "type": "binary", "classes": ["no", "yes"]},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "n_records": 1000},
        }
        for section, change in changes.items():
            table[section] = {**table[section], **change} if section == "privacy" else change
        return Plan.from_dict(table)

    return build


@pytest.fixture
def write_file(tmp_path: Path) -> WriteFile:
    """Write bytes to a new file of that name."""

    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write
