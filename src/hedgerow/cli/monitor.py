# SPDX-License-Identifier: Apache-2.0
"""``hedgerow monitor``: watch a run."""

from __future__ import annotations

import argparse
from typing import Any

from hedgerow.app.options import NodeOptions
from hedgerow.cli.options import add_command, add_fields, add_shared
from hedgerow.errors import UsageError
from hedgerow.transport.interface import Address

_MONITOR_EXAMPLE = """\
example:
  hedgerow study keys watch --monitor
  hedgerow monitor --roster roster.toml --identity watch.private.json \\
      --connect hedgerow.example.org:7443

The public file of a monitor goes into the roster (`hedgerow study roster`). It is told public numbers only,
and can change nothing.
"""


def add_commands(commands: Any) -> None:
    """Add `monitor`."""
    text = "watch a run: sites, rounds, epsilon, pace"
    add = add_command(commands, "monitor", run, text, _MONITOR_EXAMPLE)
    add("--roster", required=True, metavar="ROSTER", help="the roster that lists this monitor")
    add("--identity", required=True, metavar="FILE", help="this monitor's .private.json")
    add_fields(add, NodeOptions, "--connect", required=True)
    text = "seconds between two reports, 0.2 to 60 (%(default)s)"
    add("--every", type=float, default=0.5, metavar="S", help=text)
    add("--once", action="store_true", help="print how the run is now, and end")
    add("--json", action="store_true", help="print one JSON object per line for every event and report")
    add_shared(add, "--console")


def run(arguments: argparse.Namespace) -> None:
    """Dial the coordinator and show its reports until the run is over."""
    from hedgerow.app.monitor import watch
    from hedgerow.protocol.stream import MAX_INTERVAL, MIN_INTERVAL

    if not MIN_INTERVAL <= arguments.every <= MAX_INTERVAL:
        expected = f"a number of seconds from {MIN_INTERVAL:g} to {MAX_INTERVAL:g}"
        raise UsageError("argument", code="usage", name="--every", value=arguments.every, expected=expected)
    watch(
        arguments.roster, arguments.identity, str(Address.parse(arguments.connect, "--connect")), arguments.every,
        console=arguments.console, as_json=arguments.json, once=arguments.once,
    )  # fmt: skip
