"""``hedgerow report``: what a model promises."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from hedgerow.cli.output import print_json, warn, wrapped
from hedgerow.models.model import Model


def run(arguments: argparse.Namespace) -> None:
    """Print the privacy report that a model carries."""
    model = Model.load(arguments.model, exact=True)
    if arguments.json:
        salvaged = {} if model.salvaged is None else {"salvaged": asdict(model.salvaged)}
        print_json({"model": arguments.model, "plan_digest": model.plan.digest, **model.report.to_dict(), **salvaged})
        return
    if model.salvaged is not None:
        warn(model.salvaged.text())
    print(wrapped(model.report.text()))
