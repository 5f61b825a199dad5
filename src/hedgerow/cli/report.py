"""``hedgerow report``: what a model promises."""

from __future__ import annotations

import argparse

from hedgerow.cli.output import print_json, wrapped
from hedgerow.model import Model


def run(arguments: argparse.Namespace) -> None:
    """Print the privacy report that a model carries."""
    model = Model.load(arguments.model, exact=True)
    if arguments.json:
        print_json({"model": arguments.model, "plan_digest": model.plan.digest, **model.report.to_dict()})
        return
    print(wrapped(model.report.text()))
