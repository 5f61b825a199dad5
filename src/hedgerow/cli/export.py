"""``hedgerow export``: write a model for another program."""

from __future__ import annotations

import argparse

from hedgerow.cli.inputs import check_can_write
from hedgerow.cli.output import note, print_json
from hedgerow.models.model import Model


def run(arguments: argparse.Namespace) -> None:
    """Write XGBoost's JSON."""
    out = check_can_write(arguments.out or f"{arguments.model.removesuffix('.json')}.xgboost.json")
    model = Model.load(arguments.model)
    model.export_xgboost(out)
    if arguments.json:
        print_json({"model": arguments.model, "format": arguments.to, "out": str(out)})
        return
    note(f"Wrote {out}; load it with xgboost.Booster().load_model({str(out)!r}).")
