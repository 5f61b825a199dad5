"""``hedgerow flower-node``: answer for a site what a Flower SuperNode hands over."""

from __future__ import annotations

import argparse
from pathlib import Path

from hedgerow.flower.site import serve


def run(arguments: argparse.Namespace) -> None:
    """Answer until interrupted."""
    serve(Path(arguments.site), Path(arguments.socket), arguments.log_format, leaves=arguments.leave)
