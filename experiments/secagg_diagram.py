"""The state diagrams and the table of refusals in docs/secure-aggregation.md, drawn from the transition table."""

from __future__ import annotations

from hedgerow.secagg.diagram import render


def main(argv: list[str]) -> int:
    """Print the generated part of the document."""
    print(render())
    return 0
