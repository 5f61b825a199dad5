"""The commands and their options; each command's function is imported when it is called.

Nothing here may import numpy: ``hedgerow --help`` answers at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn

from hedgerow import __version__
from hedgerow.errors import UsageError
from hedgerow.transport import ENGINES

_EXIT_CODES = """\
exit codes:
  0 done              4 data           8 protocol        12 hidden by the noise
  1 other error       5 model file     9 secure sum      70 a fault of Hedgerow's own
  2 command line      6 site policy   10 the machine    130 interrupted
  3 plan              7 privacy       11 rows left out  137 killed, 143 told to end (SIGTERM)
(docs/errors.md lists every error)
"""


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line is a `UsageError` like every other error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # A shortened option would change its meaning when a longer one is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message=message[:1].upper() + message[1:], program=self.prog)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; the chosen command's function is `namespace.function`."""
    parser = Parser(
        prog="hedgerow",
        description="Train, check and use boosted trees over data that several sites hold and none may share,\n"
        "with differential privacy.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"hedgerow {__version__}")
    parser.set_defaults(function=None, parser=parser, debug=False, json=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_local(commands)
    _add_evaluate(commands)
    _add_model(commands)
    _add_coordinator(commands)
    _add_node(commands)
    _add_watching(commands)
    _add_study(commands)
    _add_join(commands)
    _add_approve(commands)
    _add_parties(commands)
    return parser


Add = Callable[..., Any]
"""Adds one argument to a command: see `argparse.ArgumentParser.add_argument`."""


def _command(commands: Any, name: str, function: str, help_line: str, epilog: str | None = None) -> Add:
    """A command that `function`, as "module:name", carries out; returns what adds its arguments."""
    description = f"{help_line[:1].upper()}{help_line[1:]}."
    command: argparse.ArgumentParser = commands.add_parser(name, help=help_line, description=description, epilog=epilog)
    command.set_defaults(function=function, parser=command)
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command.add_argument


def _group(commands: Any, name: str, help_line: str) -> Any:
    """A command that only has commands of its own."""
    group = commands.add_parser(name, help=help_line, description=f"{help_line[:1].upper()}{help_line[1:]}.")
    group.set_defaults(parser=group)
    return group.add_subparsers(title="commands", metavar="COMMAND")


def _whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Reads a whole number within bounds."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return value

    return number


def _above_zero(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _chance(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1, such as 0.2")
    return value


# Options of several commands.
_PLAN: dict[str, Any] = {"metavar": "PLAN", "help": "a plan's TOML file"}
_JSON: dict[str, Any] = {"action": "store_true", "help": "print one JSON object instead of text; no progress"}
_STRICT: dict[str, Any] = {"action": "store_true", "help": "refuse a row that does not fit instead of leaving it out"}
_THREADS: dict[str, Any] = {"type": _whole(1), "metavar": "N", "help": "threads to compute with (default: all)"}
_SEED: dict[str, Any] = {
    "type": _whole(0), "metavar": "N", "help": "draw the noise from a seed: for experiments, voids the guarantee",
}  # fmt: skip
_HAND_OUT: dict[str, Any] = {
    "action": "store_true", "help": "then give the model's file to the nodes that stay (--serve), for a minute at most",
}  # fmt: skip
_CONSOLE: dict[str, Any] = {
    "metavar": "[HOST:]PORT",
    "help": "a page of the run for the browser, and /metrics for Prometheus; on 127.0.0.1 unless a host is given",
}  # fmt: skip
_ADAPTER: dict[str, Any] = {
    "metavar": "FILE", "help": "how this site writes its table: a policy, or another file with [data] (docs/data.md)",
}  # fmt: skip
_ADAPTERS: dict[str, Any] = {
    "action": "append", "default": [], "dest": "adapters", "metavar": "[NAME=]FILE",
    "help": "how a site writes its table: a policy, or a file with a [data] table; without NAME: every site; repeat",
}  # fmt: skip
_ALLOW_LOSS: dict[str, Any] = {
    "type": _share, "metavar": "SHARE", "help": "go on though so many of the table's rows are left out (0.1)",
}  # fmt: skip
_SITE_CONSOLE: dict[str, Any] = {
    "metavar": "[HOST:]PORT", "help": "a page for the browser: costs, approve, stop; on 127.0.0.1 without HOST",
}  # fmt: skip
_ROSTER: dict[str, Any] = {"metavar": "ROSTER", "help": "who takes part, and by which keys"}
_HUB_IDENTITY: dict[str, Any] = {"metavar": "FILE", "help": "the coordinator's .private.json"}
_CONNECT: dict[str, Any] = {"required": True, "metavar": "HOST:PORT", "help": "the coordinator"}
_LISTEN: dict[str, Any] = {
    "default": "127.0.0.1:7443", "metavar": "HOST:PORT", "help": "where nodes dial (%(default)s)",
}  # fmt: skip
_NEW_RUN: dict[str, Any] = {
    "action": "store_true",
    "help": "set the journal of an earlier run aside (it is renamed) and begin a new one, which costs by itself",
}

_SIMULATE_EXAMPLE = """\
example:
  hedgerow simulate plan.toml --rows 20000 --sites 6
"""
_TRAIN_EXAMPLE = """\
example:
  hedgerow train plan.toml --site north=north.csv --site south=south.csv

A site's name stands before "="; without one it is the file's name. Files are .csv, .csv.gz or .parquet.
A CSV file's separator, decimal mark and encoding follow from its header, or are declared behind its name:
north.csv#separator=semicolon,decimal=comma,encoding=cp1252 (docs/data.md).
"""


_SURVEY_EXAMPLE = """\
examples:
  hedgerow survey north.csv --epsilon 0.3
  hedgerow survey --site north=north.csv --site south=south.csv --label outcome --epsilon 0.3 --out statistics
  hedgerow survey --site north=north.csv --site south=south.csv --survival curves.toml --by ward --epsilon 1 --out km

The folder then has report.html, survey.json, and, with --label, plan.toml: `hedgerow train` takes it as it is, and
counts what the statistics have cost. Everything comes from noisy sums (docs/survey.md, which shows it over nodes too).
"""


def _add_log(add: Callable[..., Any]) -> None:
    text = "lines of the log: text, or one JSON object each (%(default)s)"
    add("--log-format", choices=("text", "json"), default="text", help=text)


def _add_nodes(add: Add, noise: str, journal: str) -> None:
    """Add what a command that asks nodes takes, with these helps for who adds the noise and where it is journalled."""
    add("--roster", **_ROSTER)
    add("--identity", **_HUB_IDENTITY)
    add("--listen", **_LISTEN)
    _add_engine(add)
    add("--noise", choices=("distributed", "server"), help=noise)
    add("--journal", metavar="FILE", help=journal)
    add("--new-run", **_NEW_RUN)
    _add_log(add)


def _add_engine(add: Callable[..., Any]) -> None:
    add("--engine", choices=sorted(ENGINES), default="grpc", help="what carries the messages (%(default)s)")


def _add_local(commands: Any) -> None:
    """Add `demo`, `plan`, `privacy`, `simulate`, `check`, `survey` and `train`."""
    add = _command(commands, "demo", "hedgerow.cli.train:demo", "six sites train a private model on real data")
    text = "folder for the results, without a model; without it: hedgerow-demo, where an earlier model is set aside"
    add("--out", metavar="FOLDER", help=text)
    add("--threads", **_THREADS)
    add("--json", **_JSON)
    _add_plan(_group(commands, "plan", "draft a plan"))
    add = _command(commands, "privacy", "hedgerow.cli.privacy:run", "say what a plan costs before anyone runs it")
    add("plan", **_PLAN)
    text = "what noise of the sites costs at so many (the plan's least)"
    add("--sites", type=_whole(2, 4096), metavar="N", help=text)
    add("--json", **_JSON)
    text = "rehearse a plan on made-up rows: how well models predict, by epsilon"
    add = _command(commands, "simulate", "hedgerow.cli.train:simulate", text, _SIMULATE_EXAMPLE)
    add("plan", **_PLAN)
    add("--rows", type=_whole(20, 10**8), metavar="N", help="made-up rows over all sites (the plan's n_records)")
    add("--sites", type=_whole(1, 1000), default=3, metavar="K", help="sites of one size (%(default)s)")
    add("--seed", type=_whole(0), default=0, metavar="N", help="of the rows and the trees, not of the noise (0)")
    add("--threads", **_THREADS)
    add("--json", **_JSON)
    text = "show how a table fits a plan, column by column: for the owner of its rows, never to be sent"
    add = _command(commands, "check", "hedgerow.cli.owner:check", text)
    add("plan", **_PLAN)
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file, or a database's URL with # and a query")
    add("--adapter", **_ADAPTER)
    add("--json", **_JSON)
    _add_survey(commands)
    text = "train over sites whose tables are all on this machine"
    add = _command(commands, "train", "hedgerow.cli.train:run", text, _TRAIN_EXAMPLE)
    add("plan", **_PLAN)
    text = "one site's table, a file or a URL (a database's with # and a query); repeat"
    add("--site", action="append", required=True, dest="sites", metavar="[NAME=]TABLE", help=text)
    add("--adapter", **_ADAPTERS)
    add("--out", metavar="MODEL", help="the model file to write (default: a new model.json)")
    add("--seed", **_SEED)
    add("--no-secagg", action="store_true", help="add the sites' sums in the clear: faster with many sites, same trees")
    add("--strict", **_STRICT)
    add("--allow-loss", **_ALLOW_LOSS)
    add("--threads", **_THREADS)
    add("--json", **_JSON)


def _add_survey(commands: Any) -> None:
    text = "describe tables before anyone trains: private counts, shares, quantiles"
    add = _command(commands, "survey", "hedgerow.cli.survey:run", text, _SURVEY_EXAMPLE)
    command: argparse.ArgumentParser = commands.choices["survey"]
    text = "a .csv, .csv.gz or .parquet file, or a database's URL with a query; with --federated only its header"
    add("data", metavar="DATA", nargs="?", help=text)
    add("--site", action="append", dest="sites", metavar="[NAME=]TABLE", help="one site's table instead; repeat")
    add("--adapter", **_ADAPTERS)
    add("--epsilon", type=_above_zero, required=True, metavar="E", help="what all these statistics may cost")
    add("--delta", type=float, default=1e-6, metavar="D", help="the chance that the promise fails (%(default)s)")
    text = "show the shares of this column's classes by bin of each other, and draft a plan that predicts it"
    add("--label", default="", metavar="COLUMN", help=text)
    add("--schema", metavar="PLAN", help="a plan, or part of one: what is public of columns and label")
    text = "nothing but Kaplan-Meier curves, for the [label] of this plan or part of one: a time to an event"
    add("--survival", metavar="PLAN", help=text)
    add("--by", metavar="COLUMN", help="a curve for each category of this one of the plan's features")
    text = "a code book, as for `plan init`: types, bounds and categories are public, identifiers are left out"
    add("--codebook", metavar="CSV", help=text)
    add("--without", action="append", default=[], metavar="COLUMN", help="leave this column out; repeat")
    text = "protect whom this column names, who may have several rows, and not single rows"
    add("--unit", metavar="COLUMN", help=text)
    add("--max-rows-per-unit", type=_whole(1, 10**6), metavar="N", help="rows of one unit that are used (1)")
    add("--allow-loss", **_ALLOW_LOSS)
    text = "what the drafted plan promises, these statistics included (1, or twice E if that is more)"
    add("--train-epsilon", type=_above_zero, metavar="T", help=text)
    add("--out", metavar="FOLDER", help="where report.html, survey.json and plan.toml go; without it, none is written")
    add("--seed", **_SEED)
    add = command.add_argument_group("over nodes: the same, asked of sites that keep their tables").add_argument
    add("--federated", action="store_true", help="as the coordinator of a roster; the answers are noised and charged")
    journal = "where the run is journalled, to go on after a crash (FOLDER/survey.journal)"
    _add_nodes(add, "who adds the noise; sites have to allow it (distributed)", journal)
    command.add_argument("--json", **_JSON)


def _add_plan(actions: Any) -> None:
    add = _command(actions, "init", "hedgerow.cli.plan:init", "draft a commented plan from a table's header")
    command: argparse.ArgumentParser = actions.choices["init"]
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file; with --federated also a plan with gaps, .toml")
    add("--adapter", **_ADAPTER)
    add("--allow-loss", **_ALLOW_LOSS)
    add("--label", metavar="COLUMN", help="the column to be predicted")
    text = "where the label is a time: the column that says whether the event was seen then"
    add("--event", metavar="COLUMN", help=text)
    text = "a code book: a CSV with the columns name,type,min,max,categories,unit, or REDCap's data dictionary"
    add("--codebook", metavar="CSV", help=text)
    text = "types, bounds, categories and classes may be published, so read them off the file"
    add("--bounds-are-public", action="store_true", help=text)
    text = "find types, bounds, categories, classes and the number of records by noisy sums that cost --epsilon"
    add("--private", action="store_true", help=text)
    add("--epsilon", type=_above_zero, metavar="E", help="the promise; with --private, what the noisy sums may cost")
    add("--delta", type=_chance, metavar="D", help="the chance that it fails")
    add("--n-records", type=_whole(1), metavar="N", help="the public or declared number of records")
    add("--out", metavar="PLAN", help="file to write (default: print it); an existing one is kept")
    add = command.add_argument_group("over nodes: ask them for bounds, classes and the number of records").add_argument
    add("--federated", action="store_true", help="as the coordinator of a roster; the answers are noised and charged")
    kinds = ("binary", "multiclass", "regression", "count")
    add("--label-type", choices=kinds, help="what the label is, where DATA is a table's header (binary)")
    text = "who adds the noise, where DATA is a table's header; sites have to allow it (distributed)"
    _add_nodes(add, text, "where the survey is journalled; started again, it goes on")
    add("--seed", type=_whole(0), metavar="N", help="noise from a seed: voids the plan's guarantee")
    command.add_argument("--json", **_JSON)
    add = _command(actions, "preset", "hedgerow.cli.plan:preset", "print a named method, or a plan with it")
    add("name", nargs="?", metavar="NAME", help="the method's name")
    add("--list", action="store_true", help="list all names with their sources")
    add("--plan", metavar="PLAN", help="write the settings over this plan's [model]")
    add("--out", metavar="FILE", help="file to write (default: print it); an existing one is kept")


_EVALUATE_EXAMPLE = """\
examples:
  hedgerow evaluate model.json test.csv
  hedgerow evaluate model.json --federated --site north=north-test.csv --site south=south-test.csv --epsilon 0.1
  hedgerow evaluate model.json --federated --roster roster.toml --identity hub.private.json \\
      --listen 0.0.0.0:7443 --epsilon 0.1          # as for `hedgerow node --held-out`, see there

The last two add noise to sums over the sites, and write what that costs into the model's ledger and report.
"""


def _add_evaluate(commands: Any) -> None:
    text = "say how well a model predicts a table's labels"
    add = _command(commands, "evaluate", "hedgerow.cli.evaluate:run", text, _EVALUATE_EXAMPLE)
    command: argparse.ArgumentParser = commands.choices["evaluate"]
    add("model", metavar="MODEL")
    add("data", metavar="DATA", nargs="?", help="a .csv, .csv.gz or .parquet file with labels")
    add("--adapter", **_ADAPTERS)
    add("--allow-loss", **_ALLOW_LOSS)
    add = command.add_argument_group("over sites that may not show their rows").add_argument
    add("--federated", action="store_true", help="add noise, and charge it to the model's account")
    add("--site", action="append", dest="sites", metavar="[NAME=]TABLE", help="held-out rows; repeat")
    add("--epsilon", type=_above_zero, metavar="E", help="what this evaluation may cost")
    add("--delta", type=float, metavar="D", help="the chance that it fails (default: the plan's)")
    add("--out", metavar="MODEL", help="where the model with the new account goes (default: MODEL)")
    add("--plot", metavar="PNG", help="draw the calibration curve: .png, .svg or .pdf")
    add("--seed", type=_whole(0), metavar="N", help="noise from a seed: voids the model's guarantee")
    add("--strict", **_STRICT)
    add = command.add_argument_group("over nodes: --federated as the coordinator of a roster").add_argument
    text = "who adds the noise, whichever party added it to the training; sites have to allow it (distributed)"
    _add_nodes(add, text, "where the run is journalled (MODEL.evaluation-N.journal)")
    add("--hand-out", **_HAND_OUT)
    command.add_argument("--json", **_JSON)


def _add_model(commands: Any) -> None:
    """Add `predict`, `report`, `plot` and `export`."""
    add = _command(commands, "predict", "hedgerow.cli.model:predict", "predict each row of a table")
    command: argparse.ArgumentParser = commands.choices["predict"]
    add("model", metavar="MODEL")
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file; labels are not needed")
    add("--adapter", **_ADAPTER)
    add("--allow-loss", **_ALLOW_LOSS)
    kind = command.add_mutually_exclusive_group()
    kind.add_argument("--proba", action="store_true", help="one probability per class instead of the class")
    text = "beside each number the interval that a share C of labels lies within, such as 0.9; see docs/uncertainty.md"
    kind.add_argument("--interval", type=float, metavar="C", help=text)
    add("--out", metavar="FILE", help="CSV file to write (default: print it)")
    add("--json", **_JSON)
    add = _command(commands, "report", "hedgerow.cli.model:report", "print what a model promises")
    add("model", metavar="MODEL")
    add("--json", **_JSON)
    add = _command(commands, "plot", "hedgerow.cli.model:plot", "draw how each feature moves a model's prediction")
    add("model", metavar="MODEL")
    text = "picture to write: .png, .svg or .pdf (%(default)s)"
    add("--out", default="shapes.png", metavar="PNG", help=text)
    add("--json", **_JSON)
    add = _command(commands, "export", "hedgerow.cli.model:export", "write a model for another program")
    add("model", metavar="MODEL")
    text = "xgboost: its JSON; onnx: a graph for onnxruntime; ebm: InterpretML's JSON, of additive models (%(default)s)"
    add("--to", choices=["xgboost", "onnx", "ebm"], default="xgboost", help=text)
    text = "file to write; XGBoost wants .json (for model.json: model.xgboost.json, model.onnx or model.ebm.json)"
    add("--out", metavar="FILE", help=text)
    add("--json", **_JSON)


_COORDINATOR_EXAMPLE = """\
example:
  hedgerow coordinator plan.toml --roster roster.toml --identity hub.private.json \\
      --listen 0.0.0.0:7443 --out model.json
"""


def _add_coordinator(commands: Any) -> None:
    text = "run a plan over the nodes of a roster"
    add = _command(commands, "coordinator", "hedgerow.cli.coordinator:run", text, _COORDINATOR_EXAMPLE)
    add("plan", **_PLAN)
    add("--roster", required=True, **_ROSTER)
    add("--identity", required=True, **_HUB_IDENTITY)
    add("--out", required=True, metavar="MODEL", help="the model file to write")
    add("--listen", **_LISTEN)
    _add_engine(add)
    add("--journal", metavar="FILE", help="where the run is journalled; started again, it goes on (MODEL.journal)")
    ways = commands.choices["coordinator"].add_mutually_exclusive_group()
    ways.add_argument("--new-run", **_NEW_RUN)
    text = "carry nothing out: end the journal's run for good, and tell its sites"
    ways.add_argument("--abort", action="store_true", help=text)
    commands.choices["coordinator"].set_defaults(ended_by="--abort")
    add("--console", **_CONSOLE)
    add("--hand-out", **_HAND_OUT)
    add("--seed", **_SEED)
    _add_log(add)
    add("--json", **_JSON)


_NODE_EXAMPLE = """\
example:
  hedgerow node north.csv --plan plan.toml --roster roster.toml --identity north.private.json \\
      --policy policy.toml --connect hedgerow.example.org:7443
  hedgerow node --held-out north-test.csv --plan plan.toml --roster roster.toml --identity north.private.json \\
      --policy policy.toml --serve --connect hedgerow.example.org:7443

A node takes part in one run, of training or of evaluation, as the coordinator proposes and the policy allows; with
--serve in one after another, and it keeps the model and the report of each (`hedgerow coordinator --hand-out`).
"""


def _add_node(commands: Any) -> None:
    """Add `node` and `flower-node`."""
    text = "take part in a run with this site's table"
    add = _command(commands, "node", "hedgerow.cli.node:run", text, _NODE_EXAMPLE)
    text = "rows to train on: a .csv, .csv.gz or .parquet file, or a database's URL (with # and a query, or --query)"
    add("data", metavar="DATA", nargs="?", help=text)
    add("--query", metavar="SELECT", help="with a database's URL: the query that gives the table")
    add("--arrivals", metavar="FOLDER", help="tables moved here while a run of S-GBDT goes on join it")
    add("--held-out", metavar="DATA", help="rows that are held out, for evaluations and nothing else")
    add("--held-out-query", metavar="SELECT", help="as --query, for --held-out")
    text = "let this model be evaluated; those that this node helped to make may be anyway; repeat"
    add("--model", action="append", dest="allowed", metavar="MODEL", help=text)
    add("--plan", metavar="PLAN", help="take part in this plan only; needed, unless the policy lists digests of plans")
    add("--roster", required=True, **_ROSTER)
    add("--identity", required=True, metavar="FILE", help="this site's .private.json")
    add("--policy", required=True, metavar="FILE", help="what this site's owner allows")
    add("--connect", **_CONNECT)
    _add_engine(add)
    add("--state", metavar="FOLDER", help="this node's own files, kept between runs (NAME-state beside the identity)")
    add("--budget", metavar="FILE", help="the budget book of the data (default: NAME-budget.db beside the policy)")
    add("--serve", action="store_true", help="stay for the next run and evaluation, and receive each one's model")
    text = "with --serve: where the models and their reports go (NAME-models beside the identity)"
    add("--out", metavar="FOLDER", help=text)
    text = "leave the run that the state holds, charged for what was answered in it; take part in the next one"
    add("--leave", action="store_true", help=text)
    add("--console", **_SITE_CONSOLE)
    add("--threads", **_THREADS)
    _add_log(add)
    add("--json", **_JSON)
    text = "answer for this site what a Flower SuperNode hands over"
    add = _command(commands, "flower-node", "hedgerow.cli.flower:run", text)
    add("site", metavar="SITE", help="the site's TOML file; docs/flower.md has one to begin with")
    add("--socket", required=True, metavar="PATH", help="where the SuperNode's user may knock")
    add("--leave", action="store_true", help="as for `hedgerow node`: leave the state's run")
    _add_log(add)


_MONITOR_EXAMPLE = """\
example:
  hedgerow identity new watch --monitor        # its public file goes into the roster: `roster build --monitor`
  hedgerow monitor --roster roster.toml --identity watch.private.json --connect hedgerow.example.org:7443

A monitor is told public numbers only, and can change nothing.
"""


def _add_watching(commands: Any) -> None:
    """Add `monitor` and `ledger`."""
    text = "watch a run: sites, rounds, epsilon, pace"
    add = _command(commands, "monitor", "hedgerow.cli.monitor:run", text, _MONITOR_EXAMPLE)
    add("--roster", required=True, metavar="ROSTER", help="the roster that lists this monitor")
    add("--identity", required=True, metavar="FILE", help="this monitor's .private.json")
    add("--connect", **_CONNECT)
    text = "seconds between two reports, 0.2 to 60 (%(default)s)"
    add("--every", type=float, default=0.5, metavar="S", help=text)
    add("--once", action="store_true", help="print how the run is now, and end")
    add("--json", action="store_true", help="print one JSON object per line for every event and report")
    add("--console", **_CONSOLE)
    add = _command(commands, "ledger", "hedgerow.cli.ledger:run", "show what all runs have cost a site's data")
    add("state", metavar="BOOK", help="a budget book, or a node's folder (`--state`)")
    add("--policy", metavar="FILE", help="the owner's policy: show what is left of its epsilon")
    add("--delta", type=float, default=1e-6, metavar="D", help="without a policy: at this delta")
    text = "end a reserved run, named by its first digits: charged for what has left, and never taken up again"
    add("--close", metavar="RUN", help=text)
    text = "let the sites' seed be drawn again for a plan, named by the first digits of its digest, after many runs "
    add("--allow-draws", metavar="PLAN", help=text + "that were given up before a vector was masked")
    text = "charge the policy's data set for runs that the book has lost (`budget-rolled-back`), as you reckon them"
    add("--lost", type=float, metavar="EPSILON", help=text)
    text = "list what coordinators have asked this site for, and the answers"
    add("--invitations", action="store_true", help=text)
    add("--json", action="store_true", help="print one JSON object instead of text")


_STUDY: dict[str, Any] = {"metavar": "FOLDER", "help": "the study's folder (this one, or the only one below it)"}
_JOIN_END = """\
The keys that it makes stay in the folder STUDY-PARTY beside the invitation. Ended by Ctrl-C (exit code 130), SIGTERM
(143) or by anything else, and started again, it goes on where it was.
"""


def _add_run(add: Add) -> None:
    add("--seed", **_SEED)
    add("--study", **_STUDY)
    _add_log(add)
    add("--json", **_JSON)


def _add_study(commands: Any) -> None:
    """Add `study`."""
    actions = _group(commands, "study", "coordinate a study: invite sites, confirm them, carry runs out")
    add = _command(actions, "new", "hedgerow.cli.study:new", "make a study's folder: keys and plan")
    add("name", metavar="NAME", help="the study's name, and its folder's")
    add("--plan", required=True, metavar="PLAN", help="the plan of its first run")
    add("--listen", required=True, metavar="HOST:PORT", help="where this machine listens")
    add("--address", metavar="HOST:PORT", help="where sites dial, if that is another address (--listen)")
    add = _command(actions, "invite", "hedgerow.cli.study:invite", "write one invitation file for each party")
    add("sites", nargs="*", metavar="SITE", help="the sites' names")
    text = "a party that may watch runs and do nothing else; repeat"
    add("--monitor", action="append", default=[], dest="monitors", metavar="NAME", help=text)
    text = "what a site is asked to allow over all runs, in the policy that it is to confirm (the plan's)"
    add("--max-epsilon", type=_above_zero, metavar="E", help=text)
    add("--policy", metavar="FILE", help="lines of a policy, but for version and data_set, that sites are to confirm")
    text = "write new invitations; the old ones of these parties are void, the policies that they propose are kept"
    add("--again", action="store_true", help=text)
    add("--study", **_STUDY)
    text = "say that the coordinator is somewhere else from now on"
    add = _command(actions, "address", "hedgerow.cli.study:address", text)
    add("address", metavar="HOST:PORT", help="where sites dial")
    add("--listen", metavar="HOST:PORT", help="where this machine listens (as before, or ADDRESS if it was the same)")
    add("--study", **_STUDY)
    text = "expect a party no more; one that is in the roster is taken out, and its keys are trusted no longer"
    add = _command(actions, "withdraw", "hedgerow.cli.study:withdraw", text)
    add("party", metavar="PARTY")
    add("--study", **_STUDY)
    text = "say that a party has read these words: its keys are pinned"
    add = _command(actions, "confirm", "hedgerow.cli.study:confirm", text)
    add("words", nargs="+", metavar="PARTY=WORDS", help='as north="apple river stone lamp"')
    add("--study", **_STUDY)
    _add_runs(actions)


def _add_runs(actions: Any) -> None:
    """Add what a study's coordinator does once its sites are invited."""
    text = "wait for all parties, compare their words, and carry out the first run"
    add = _command(actions, "serve", "hedgerow.cli.study:serve", text)
    text = 'as `study confirm`, for one party: north="apple river stone lamp"; repeat'
    add("--confirm", action="append", default=[], metavar="PARTY=WORDS", help=text)
    add("--console", **_CONSOLE)
    _add_run(add)
    add = _command(actions, "run", "hedgerow.cli.study:run", "go on with the newest run, or begin another one")
    add("--plan", metavar="PLAN", help="a new plan, from this run on; every site has to take it up")
    add("--console", **_CONSOLE)
    _add_run(add)
    text = "evaluate a model over the rows that sites hold out"
    add = _command(actions, "evaluate", "hedgerow.cli.study:evaluate", text)
    add("--epsilon", type=_above_zero, required=True, metavar="E", help="what this evaluation may cost")
    add("--run", type=_whole(1), metavar="N", help="the run whose model it is (the newest)")
    add("--noise", choices=("distributed", "server"), help="as for `hedgerow evaluate` (distributed)")
    _add_run(add)
    text = "ask the sites for statistics of the plan's columns, as far as their policies allow (surveys = true)"
    add = _command(actions, "survey", "hedgerow.cli.study:survey", text)
    add("--epsilon", type=_above_zero, required=True, metavar="E", help="what all these statistics may cost")
    add("--noise", choices=("distributed", "server"), help="as for `hedgerow survey` (distributed)")
    _add_run(add)
    text = "let the newest run rest between two rounds; its sites wait until `study run` goes on with it"
    _command(actions, "pause", "hedgerow.cli.study:pause", text)("--study", **_STUDY)
    text = "end the newest run for good, and tell its sites, which then wait for another"
    _add_run(_command(actions, "abort", "hedgerow.cli.study:abort", text))
    text = "a whole study on this machine: real data, a process for each party, the same commands"
    add = _command(actions, "demo", "hedgerow.cli.study:demo", text)
    add("--sites", type=_whole(3, 6), default=6, metavar="N", help="3 to 6 (%(default)s)")
    add("--out", default="hedgerow-study", metavar="FOLDER", help="a new folder for all of it (%(default)s)")
    add = _command(actions, "list", "hedgerow.cli.study:show", "say who takes part, and which runs there were")
    add("--study", **_STUDY)
    add("--json", **_JSON)


def _add_join(commands: Any) -> None:
    """Add `join`."""
    add = _command(commands, "join", "hedgerow.cli.join:run", "take part in a study, by its invitation", _JOIN_END)
    add("invitation", metavar="INVITATION", help="the file that the coordinator sent")
    text = "rows to train on: a .csv, .csv.gz or .parquet file, or a database's URL with # and a query"
    add("--data", metavar="DATA", help=text)
    add("--held-out", metavar="DATA", help="rows that are held out, for evaluations and nothing else")
    text = "what the budget of these rows is counted for, the same name for ever (the table's)"
    add("--data-set", metavar="NAME", help=text)
    text = "the most rows that this site will ever use, as a round public number: everybody sees it (none)"
    add("--max-rows", metavar="N", help=text)
    add("--plan", metavar="PLAN", help="a corrected plan, in place of the invitation's")
    add("--once", action="store_true", help="end after one run; otherwise wait for the next")
    add("--policy", metavar="FILE", help="your own policy, in place of the one that the invitation proposes")
    text = "how this site writes its table: a file with a [data] table, which goes into the policy (docs/data.md)"
    add("--adapter", metavar="FILE", help=text)
    add("--yes", action="store_true", help="agree to plan, policy and roster unasked; the words are compared anyway")
    text = "the sites that there shall be besides this one: a roster with others, or without one of them, is refused"
    add("--expect", metavar="SITE,SITE", help=text)
    text = "where the coordinator is now, if not where the invitation says; its keys are the invitation's all the same"
    add("--connect", metavar="HOST:PORT", help=text)
    add("--allow-loss", **_ALLOW_LOSS)
    add("--confirm", metavar="WORDS", help="say which four words the operator has read to you, and end")
    add("--folder", metavar="FOLDER", help="this party's own files, its keys among them (STUDY-PARTY)")
    add("--budget", metavar="FILE", help="the budget book of the data (PARTY-budget.db beside the invitation)")
    add("--console", **_SITE_CONSOLE)
    add("--threads", **_THREADS)
    _add_log(add)
    add("--json", **_JSON)


_APPROVE_END = """\
A node asks where its policy says ask = "always". An approval holds for one run, by one plan, at one cost.
"""


def _add_approve(commands: Any) -> None:
    """Add `approve`."""
    text = "show what a site's node asks its owner; approve it, refuse it, or stop taking part"
    add = _command(commands, "approve", "hedgerow.cli.owner:approve", text, _APPROVE_END)
    add("folder", metavar="FOLDER", help="the node's folder (`--state`), or a party's of a study (STUDY-PARTY)")
    add("question", nargs="?", metavar="QUESTION", help="approve this question, by its 32 digits, without asking")
    ways = commands.choices["approve"].add_mutually_exclusive_group()
    ways.add_argument("--deny", action="store_true", help="deny what is asked, or QUESTION")
    text = "the node leaves its run for good, charged for what it has answered, and ends"
    ways.add_argument("--stop", action="store_true", help=text)
    add("--json", action="store_true", help="print what is asked as one JSON object")


def _add_parties(commands: Any) -> None:
    """Add `identity` and `roster`."""
    actions = _group(commands, "identity", "make or show the keys of a site, coordinator or monitor")
    text = "make the keys of this site, or of the coordinator"
    add = _command(actions, "new", "hedgerow.cli.parties:new", text)
    add("name", metavar="NAME", help="the site's name, as all others will see it")
    role = actions.choices["new"].add_mutually_exclusive_group()
    role.add_argument("--coordinator", action="store_true", help="the keys are the coordinator's, not a site's")
    role.add_argument("--monitor", action="store_true", help="the keys are for watching runs, not a site's")
    add("--folder", default=".", metavar="FOLDER", help="where to write the two files (%(default)s)")
    add("--json", **_JSON)
    add = _command(actions, "show", "hedgerow.cli.parties:show", "say whose keys a file holds; shows no secret")
    add("file", metavar="FILE", help="a .public.toml or .private.json file")
    add("--json", **_JSON)
    actions = _group(commands, "roster", "make or show the list of those who trust each other")
    add = _command(actions, "build", "hedgerow.cli.parties:build", "make a roster out of the parties' public files")
    add("sites", nargs="+", metavar="SITE", help="the sites' .public.toml files")
    add("--coordinator", required=True, metavar="FILE", help="the coordinator's .public.toml file")
    text = "the .public.toml of somebody who may watch runs; repeat"
    add("--monitor", action="append", default=[], dest="monitors", metavar="FILE", help=text)
    text = "the most rows that a site has: its node keeps its sums within what they can add up to; repeat"
    add("--max-rows", action="append", default=[], metavar="NAME=N", help=text)
    add("--previous", metavar="ROSTER", help="the roster that this one follows: a new epoch")
    text = "file to write; an existing one is kept (%(default)s)"
    add("--out", default="roster.toml", metavar="ROSTER", help=text)
    add("--json", **_JSON)
    add = _command(actions, "show", "hedgerow.cli.parties:show_roster", "say who is in a roster, and its fingerprint")
    add("roster", metavar="ROSTER")
    add("--json", **_JSON)
