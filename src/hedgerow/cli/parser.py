"""The commands and their arguments. Nothing here may import numpy: ``hedgerow --help`` answers at once."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from hedgerow import __version__
from hedgerow.errors import UsageError

_TRAIN_EXAMPLE = """\
example:
  hedgerow train plan.toml --site north=north.csv --site south=south.csv

A site's name stands before "="; without one it is the file's name. Files are .csv, .csv.gz or .parquet.
"""

_EVALUATE_EXAMPLE = """\
examples:
  hedgerow evaluate model.json test.csv
  hedgerow evaluate model.json --federated --site north=north-test.csv --site south=south-test.csv --epsilon 0.1
  hedgerow evaluate model.json --federated --roster roster.toml --identity hub.private.json \\
      --listen 0.0.0.0:7443 --epsilon 0.1          # as for `hedgerow node --held-out`, see there

The last two add noise to sums over the sites, and write what that costs into the model's ledger and report.
"""

_EXIT_CODES = """\
exit codes:
  0 done              4 data           8 protocol        70 a fault of Hedgerow's own
  1 other error       5 model file     9 secure sum     130 interrupted
  2 command line      6 site policy   10 the machine
  3 plan              7 privacy       (docs/errors.md lists every error)
"""


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line is a `UsageError` like every other error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # A shortened option would change its meaning when a longer one is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}.", remedy=f"See `{self.prog} --help`.", code="usage")


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
    _add_demo(commands)
    _add_plan(commands)
    _add_privacy(commands)
    _add_train(commands)
    _add_evaluate(commands)
    _add_predict(commands)
    _add_report(commands)
    _add_plot(commands)
    _add_export(commands)
    _add_federation(commands)
    _add_identity(commands)
    _add_roster(commands)
    return parser


def _command(commands: Any, name: str, function: str, help_line: str, **kwargs: Any) -> argparse.ArgumentParser:
    """A command that `function`, as "module:name", carries out."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=help_line, description=f"{help_line[:1].upper()}{help_line[1:]}.", **kwargs
    )
    command.set_defaults(function=function, parser=command)
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object instead of text; no progress")


def _add_running(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", type=_at_least_one, metavar="N", help="threads to compute with (default: all)")


def _add_demo(commands: Any) -> None:
    demo = _command(commands, "demo", "hedgerow.cli.demo:run", "six sites train a private model on real data")
    text = "folder for the results, without a model; without it: hedgerow-demo, where an earlier model is set aside"
    demo.add_argument("--out", metavar="FOLDER", help=text)
    demo.add_argument("--compare", action="store_true", help="also train without privacy, to see what it costs")
    _add_running(demo)
    _add_json(demo)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="draft a plan", description="Draft a plan.")
    plan.set_defaults(parser=plan)
    actions = plan.add_subparsers(title="commands", metavar="COMMAND")
    init = _command(actions, "init", "hedgerow.cli.plan:init", "draft a commented plan from a table's header")
    init.add_argument("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file")
    init.add_argument("--label", required=True, metavar="COLUMN", help="the column to be predicted")
    init.add_argument(
        "--bounds-are-public",
        action="store_true",
        help="types, bounds, categories and classes may be published, so read them off the file",
    )
    init.add_argument("--epsilon", type=float, metavar="E", help="the promise")
    init.add_argument("--delta", type=float, metavar="D", help="the chance that it fails")
    init.add_argument("--n-records", type=_at_least_one, metavar="N", help="the public or declared number of records")
    init.add_argument("--out", metavar="PLAN", help="file to write (default: print it); an existing one is kept")
    preset = _command(actions, "preset", "hedgerow.cli.plan:preset", "print a named method, or a plan with it")
    preset.add_argument("name", nargs="?", metavar="NAME", help="the method's name")
    preset.add_argument("--list", action="store_true", help="list all names with their sources")
    preset.add_argument("--plan", metavar="PLAN", help="write the settings over this plan's [model]")
    preset.add_argument("--out", metavar="FILE", help="file to write (default: print it); an existing one is kept")


def _add_privacy(commands: Any) -> None:
    privacy = _command(commands, "privacy", "hedgerow.cli.privacy:run", "say what a plan costs before anyone runs it")
    privacy.add_argument("plan", metavar="PLAN", help="a plan's TOML file")
    privacy.add_argument(
        "--sites", type=_n_sites, metavar="N", help="what noise of the sites costs at so many (the plan's least)"
    )
    _add_json(privacy)


def _n_sites(text: str) -> int:
    """A number of sites among which noise can be shared."""
    number = int(text)
    if not 2 <= number <= 4096:
        raise argparse.ArgumentTypeError(f"{number} is not from 2 to 4096")
    return number


def _add_train(commands: Any) -> None:
    train = _command(
        commands, "train", "hedgerow.cli.train:run", "train over sites whose tables are all on this machine",
        epilog=_TRAIN_EXAMPLE,
    )  # fmt: skip
    train.add_argument("plan", metavar="PLAN", help="a plan's TOML file")
    train.add_argument(
        "--site", action="append", required=True, dest="sites", metavar="[NAME=]FILE", help="one site's table; repeat"
    )
    train.add_argument("--out", metavar="MODEL", help="the model file to write (default: a new model.json)")
    train.add_argument(
        "--seed", type=_seed, metavar="N", help="draw the noise from a seed: for experiments, voids the guarantee"
    )
    train.add_argument(
        "--no-secagg", action="store_true", help="add the sites' sums in the clear: faster with many sites, same trees"
    )
    _add_strict(train)
    _add_running(train)
    _add_json(train)


def _add_strict(command: Any) -> None:
    text = "refuse a row that does not fit instead of leaving it out"
    command.add_argument("--strict", action="store_true", help=text)


def _add_evaluate(commands: Any) -> None:
    evaluate = _command(
        commands, "evaluate", "hedgerow.cli.evaluate:run", "say how well a model predicts a table's labels",
        epilog=_EVALUATE_EXAMPLE,
    )  # fmt: skip
    evaluate.add_argument("model", metavar="MODEL")
    evaluate.add_argument("data", metavar="DATA", nargs="?", help="a .csv, .csv.gz or .parquet file with labels")
    federated = evaluate.add_argument_group("over sites that may not show their rows")
    federated.add_argument("--federated", action="store_true", help="add noise, and charge it to the model's account")
    federated.add_argument("--site", action="append", dest="sites", metavar="[NAME=]FILE", help="held-out rows; repeat")
    federated.add_argument("--epsilon", type=_above_zero, metavar="E", help="what this evaluation may cost")
    federated.add_argument("--delta", type=float, metavar="D", help="the chance that it fails (default: the plan's)")
    federated.add_argument("--out", metavar="MODEL", help="where the model with the new account goes (default: MODEL)")
    federated.add_argument("--plot", metavar="PNG", help="draw the calibration curve: .png, .svg or .pdf")
    federated.add_argument("--seed", type=_seed, metavar="N", help="noise from a seed: voids the model's guarantee")
    _add_strict(federated)
    _add_coordinating(evaluate.add_argument_group("over nodes: --federated as the coordinator of a roster"))
    _add_json(evaluate)


def _add_predict(commands: Any) -> None:
    predict = _command(commands, "predict", "hedgerow.cli.model:predict", "predict each row of a table")
    predict.add_argument("model", metavar="MODEL")
    predict.add_argument("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file; labels are not needed")
    predict.add_argument("--proba", action="store_true", help="one probability per class instead of the class")
    predict.add_argument("--out", metavar="FILE", help="CSV file to write (default: print it)")
    _add_json(predict)


def _add_report(commands: Any) -> None:
    report = _command(commands, "report", "hedgerow.cli.model:report", "print what a model promises")
    report.add_argument("model", metavar="MODEL")
    _add_json(report)


def _add_plot(commands: Any) -> None:
    plot = _command(commands, "plot", "hedgerow.cli.model:plot", "draw how each feature moves a model's prediction")
    plot.add_argument("model", metavar="MODEL")
    plot.add_argument(
        "--out", default="shapes.png", metavar="PNG", help="picture to write: .png, .svg or .pdf (%(default)s)"
    )
    _add_json(plot)


def _add_export(commands: Any) -> None:
    export = _command(commands, "export", "hedgerow.cli.model:export", "write a model for another program")
    export.add_argument("model", metavar="MODEL")
    export.add_argument("--to", choices=["xgboost"], default="xgboost", help="whose format (%(default)s)")
    export.add_argument(
        "--out", metavar="FILE", help="file to write; XGBoost wants .json (model.xgboost.json for model.json)"
    )
    _add_json(export)


def _group(commands: Any, name: str, help_line: str) -> Any:
    """A command that only has commands of its own."""
    group = commands.add_parser(name, help=help_line, description=f"{help_line[:1].upper()}{help_line[1:]}.")
    group.set_defaults(parser=group)
    return group.add_subparsers(title="commands", metavar="COMMAND")


def _add_identity(commands: Any) -> None:
    actions = _group(commands, "identity", "make or show the keys of a site, coordinator or monitor")
    new = _command(actions, "new", "hedgerow.cli.identity:new", "make the keys of this site, or of the coordinator")
    new.add_argument("name", metavar="NAME", help="the site's name, as all others will see it")
    role = new.add_mutually_exclusive_group()
    role.add_argument("--coordinator", action="store_true", help="the keys are the coordinator's, not a site's")
    role.add_argument("--monitor", action="store_true", help="the keys are for watching runs, not a site's")
    new.add_argument("--folder", default=".", metavar="FOLDER", help="where to write the two files (%(default)s)")
    _add_json(new)
    show = _command(actions, "show", "hedgerow.cli.identity:show", "say whose keys a file holds; shows no secret")
    show.add_argument("file", metavar="FILE", help="a .public.toml or .private.json file")
    _add_json(show)


def _add_roster(commands: Any) -> None:
    actions = _group(commands, "roster", "make or show the list of those who trust each other")
    build = _command(actions, "build", "hedgerow.cli.roster:build", "make a roster out of the parties' public files")
    build.add_argument("sites", nargs="+", metavar="SITE", help="the sites' .public.toml files")
    build.add_argument("--coordinator", required=True, metavar="FILE", help="the coordinator's .public.toml file")
    build.add_argument(
        "--monitor", action="append", default=[], dest="monitors", metavar="FILE",
        help="the .public.toml of somebody who may watch runs; repeat",
    )  # fmt: skip
    build.add_argument(
        "--max-rows", action="append", default=[], metavar="NAME=N",
        help="the most rows that a site has: its node keeps its sums within what they can add up to; repeat",
    )  # fmt: skip
    build.add_argument("--previous", metavar="ROSTER", help="the roster that this one follows: a new epoch")
    build.add_argument(
        "--out", default="roster.toml", metavar="ROSTER", help="file to write; an existing one is kept (%(default)s)"
    )
    _add_json(build)
    show = _command(actions, "show", "hedgerow.cli.roster:show", "say who is in a roster, and its fingerprint")
    show.add_argument("roster", metavar="ROSTER")
    _add_json(show)


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; a seed is 0 or more")
    return value


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


def _add_federation(commands: Any) -> None:
    """Add `coordinator`, `node`, `flower-node`, `monitor` and `ledger`."""
    _add_coordinator(commands)
    _add_node(commands)
    _add_flower_node(commands)
    _add_monitor(commands)
    _add_ledger(commands)


def _add_coordinator(commands: Any) -> None:
    parser = _command(
        commands, "coordinator", "hedgerow.cli.coordinator:run", "run a plan over the nodes of a roster",
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


def _add_coordinating(group: Any) -> None:
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


def _add_node(commands: Any) -> None:
    parser = _command(
        commands, "node", "hedgerow.cli.node:run", "take part in a run with this site's table", epilog=_NODE_EXAMPLE
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


def _add_flower_node(commands: Any) -> None:
    parser = _command(
        commands,
        "flower-node",
        "hedgerow.flower.site:serve",
        "answer for this site what a Flower SuperNode hands over",
    )
    parser.add_argument("site", metavar="SITE", help="the site's TOML file; docs/flower.md has one to begin with")
    parser.add_argument("--socket", required=True, metavar="PATH", help="where the SuperNode's user may knock")
    parser.add_argument("--leave", action="store_true", help="as for `hedgerow node`: leave the state's run")


def _add_monitor(commands: Any) -> None:
    parser = _command(
        commands, "monitor", "hedgerow.cli.monitor:run", "watch a run: sites, rounds, epsilon, pace",
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


def _add_ledger(commands: Any) -> None:
    parser = _command(commands, "ledger", "hedgerow.cli.ledger:run", "show what all runs have cost a site's data")
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
