"""The commands that run a federation over a network: who may be told what on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

AddCommand = Callable[..., argparse.ArgumentParser]

DEFAULT_LISTEN = "127.0.0.1:7443"

_COORDINATOR_EXAMPLE = """\
example:
  hedgerow coordinator plan.toml --roster roster.toml --identity hub.private.json \\
      --listen 0.0.0.0:7443 --out model.json
"""
_NODE_EXAMPLE = """\
example:
  hedgerow node north.csv --plan plan.toml --roster roster.toml --identity north.private.json \\
      --policy policy.toml --connect hedgerow.example.org:7443
  hedgerow node --held-out north-test.csv --plan plan.toml --roster roster.toml --identity north.private.json \\
      --policy policy.toml --connect hedgerow.example.org:7443

A node takes part in one run, of training or of evaluation, as the coordinator proposes and the policy allows.
"""
_MONITOR_EXAMPLE = """\
example:
  hedgerow identity new watch --monitor        # its public file goes into the roster: `roster build --monitor`
  hedgerow monitor --roster roster.toml --identity watch.private.json --connect hedgerow.example.org:7443

A monitor is told public numbers only, and can change nothing.
"""


def add_federation(commands: Any, command: AddCommand) -> None:
    """Add `coordinator`, `node`, `flower-node`, `monitor` and `ledger`."""
    _add_coordinator(commands, command)
    _add_node(commands, command)
    _add_flower_node(commands, command)
    _add_monitor(commands, command)
    _add_ledger(commands, command)


def _add_coordinator(commands: Any, command: AddCommand) -> None:
    parser = command(
        commands, "coordinator", "hedgerow.cli.coordinator", "run a plan over the nodes of a roster",
        epilog=_COORDINATOR_EXAMPLE,
    )  # fmt: skip
    parser.add_argument("plan", metavar="PLAN", help="a plan's TOML file")
    parser.add_argument("--roster", required=True, metavar="ROSTER", help="who takes part, and by which keys")
    parser.add_argument("--identity", required=True, metavar="FILE", help="the coordinator's .private.json")
    parser.add_argument("--out", required=True, metavar="MODEL", help="the model file to write")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="where nodes dial (%(default)s)")
    parser.add_argument(
        "--journal", metavar="FILE", help="where the run is journalled; started again, it goes on (MODEL.journal)"
    )
    ways = parser.add_mutually_exclusive_group()
    _add_new_run(ways)
    ways.add_argument(
        "--abort", action="store_true", help="carry nothing out: end the journal's run for good, and tell its sites"
    )
    parser.add_argument(
        "--metrics", metavar="[HOST:]PORT",
        help="serve numbers for Prometheus, without authentication; on 127.0.0.1 unless a host is given",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N", help="draw the noise from a seed: for experiments, voids the guarantee"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text; no progress")


def add_coordinating(group: Any) -> None:
    """The options of `evaluate` that make it a coordinator, as they are called there."""
    group.add_argument("--roster", metavar="ROSTER", help="who takes part, and by which keys")
    group.add_argument("--identity", metavar="FILE", help="the coordinator's .private.json")
    group.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="where nodes dial (%(default)s)")
    group.add_argument(
        "--noise", choices=("distributed", "server"),
        help="who adds the noise, whoever added it to the training; sites have to allow it (distributed)",
    )  # fmt: skip
    group.add_argument("--journal", metavar="FILE", help="where the run is journalled (MODEL.evaluation-N.journal)")
    _add_new_run(group)
    group.add_argument("--metrics", metavar="[HOST:]PORT", help="numbers for Prometheus, as `hedgerow coordinator`")


def _add_new_run(group: Any) -> None:
    group.add_argument(
        "--new-run", action="store_true",
        help="set the journal of an earlier run aside (it is renamed) and begin a new one, which costs by itself",
    )  # fmt: skip


def _add_node(commands: Any, command: AddCommand) -> None:
    parser = command(
        commands, "node", "hedgerow.cli.node", "take part in a run with this site's table", epilog=_NODE_EXAMPLE
    )
    parser.add_argument(
        "data", metavar="DATA", nargs="?",
        help="rows to train on: a .csv, .csv.gz or .parquet file, or a database's URL",
    )  # fmt: skip
    parser.add_argument("--query", metavar="SELECT", help="with a database's URL: the query that gives the table")
    parser.add_argument("--arrivals", metavar="FOLDER", help="tables moved here while a run of S-GBDT goes on join it")
    parser.add_argument("--held-out", metavar="DATA", help="rows that are held out, for evaluations and nothing else")
    parser.add_argument("--held-out-query", metavar="SELECT", help="as --query, for --held-out")
    parser.add_argument(
        "--model", action="append", dest="models", metavar="MODEL",
        help="let this model be evaluated; those that this node helped to make may be anyway; repeat",
    )  # fmt: skip
    parser.add_argument(
        "--plan", metavar="PLAN",
        help="take part in this plan only; needed, unless the policy lists digests of plans",
    )  # fmt: skip
    parser.add_argument("--roster", required=True, metavar="ROSTER", help="who takes part, and by which keys")
    parser.add_argument("--identity", required=True, metavar="FILE", help="this site's .private.json")
    parser.add_argument("--policy", required=True, metavar="FILE", help="what this site's owner allows")
    parser.add_argument("--connect", required=True, metavar="HOST:PORT", help="the coordinator")
    parser.add_argument(
        "--state", metavar="FOLDER", help="this node's own files, kept between runs (NAME-state beside the identity)"
    )
    parser.add_argument(
        "--budget", metavar="FILE", help="the budget book of the data (default: NAME-budget.db beside the policy)"
    )
    parser.add_argument(
        "--leave", action="store_true",
        help="leave the run that the state holds, charged for what was answered in it; take part in the next one",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="threads to compute with (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text; no progress")


def _add_flower_node(commands: Any, command: AddCommand) -> None:
    parser = command(
        commands, "flower-node", "hedgerow.cli.flower_node", "answer for this site what a Flower SuperNode hands over"
    )
    parser.add_argument("site", metavar="SITE", help="the site's TOML file; docs/flower.md has one to begin with")
    parser.add_argument("--socket", required=True, metavar="PATH", help="where the SuperNode's user may knock")
    parser.add_argument("--leave", action="store_true", help="as for `hedgerow node`: leave the state's run")


def _add_monitor(commands: Any, command: AddCommand) -> None:
    parser = command(
        commands, "monitor", "hedgerow.cli.monitor", "watch a run: sites, rounds, epsilon, pace",
        epilog=_MONITOR_EXAMPLE,
    )  # fmt: skip
    parser.add_argument("--roster", required=True, metavar="ROSTER", help="the roster that lists this monitor")
    parser.add_argument("--identity", required=True, metavar="FILE", help="this monitor's .private.json")
    parser.add_argument("--connect", required=True, metavar="HOST:PORT", help="the coordinator")
    parser.add_argument(
        "--every", type=float, default=0.5, metavar="S", help="seconds between two reports, 0.2 to 60 (%(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print how the run is now, and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line for every event and report")


def _add_ledger(commands: Any, command: AddCommand) -> None:
    parser = command(commands, "ledger", "hedgerow.cli.ledger", "show what all runs have cost a site's data")
    parser.add_argument("state", metavar="BOOK", help="a budget book, or a node's folder (`--state`)")
    parser.add_argument("--policy", metavar="FILE", help="the owner's policy: show what is left of its epsilon")
    parser.add_argument("--delta", type=float, default=1e-6, metavar="D", help="without a policy: at this delta")
    parser.add_argument(
        "--close", metavar="RUN",
        help="end a reserved run, named by its first digits: charged for what has left, and never taken up again",
    )  # fmt: skip
    parser.add_argument(
        "--allow-draws", metavar="PLAN",
        help="let the sites' seed be drawn again for a plan, named by the first digits of its digest, after many runs "
        "that were given up before a vector was masked",
    )  # fmt: skip
    parser.add_argument(
        "--invitations", action="store_true", help="list what coordinators have asked this site for, and the answers"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
