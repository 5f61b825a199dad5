"""``hedgerow plot``: how each feature moves a model's prediction."""

from __future__ import annotations

import argparse

from hedgerow.cli.inputs import check_can_write
from hedgerow.cli.output import note, print_json
from hedgerow.errors import UsageError
from hedgerow.models.model import Model
from hedgerow.models.plots import plot_shapes

_ENDINGS = (".png", ".svg", ".pdf")


def run(arguments: argparse.Namespace) -> None:
    """Draw the shape functions into one file."""
    out = check_can_write(arguments.out)
    if out.suffix.lower() not in _ENDINGS:
        raise UsageError(
            f"{out}: pictures end in {', '.join(_ENDINGS)}.", remedy="Choose one of these.", code="picture-format"
        )
    model = Model.load(arguments.model)
    plot_shapes(model, out)
    if arguments.json:
        print_json({"model": arguments.model, "out": str(out)})
        return
    note(f"Wrote {out}.")
