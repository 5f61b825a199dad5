# SPDX-License-Identifier: Apache-2.0
"""``hedgerow plan``: `init` drafts a plan from a table's header, and `from-omop` one of an OMOP database's persons.

With `init --federated` a coordinator has sites find what a plan leaves open, and writes the plan.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import adapt_sites, adapt_table, check_can_write, join_names, new_file, read_text
from hedgerow.app.output import format_command, note, number, print_facts, print_json, warn, warn_seeded
from hedgerow.cli.options import (
    above_zero,
    add_command,
    add_group,
    add_nodes,
    add_shared,
    read_options,
    whole,
)
from hedgerow.data.omop import DIALECTS
from hedgerow.errors import DataError, HedgerowError, UsageError
from hedgerow.plan.plan import PLAN_VERSION, Plan, read_table
from hedgerow.plan.toml import plan_toml

if TYPE_CHECKING:
    from hedgerow.data.sources import Location
    from hedgerow.server.coordinator import RunSession
    from hedgerow.server.release import Outcome
    from hedgerow.survey.requests import OpenPlan


def add_commands(commands: Any) -> None:
    """Add `init`, `plan init`, `plan from-omop` and `schema`."""
    text = "write a folder to begin a study in: a plan, made-up tables of three sites, a script"
    add = add_command(commands, "init", start, text)
    add("folder", metavar="FOLDER", help="a new one, or one with nothing in it")
    actions = add_group(commands, "plan", "draft a plan")
    add = add_command(actions, "init", init, "draft a commented plan from a table's header")
    command: argparse.ArgumentParser = actions.choices["init"]
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file; with --federated also a plan with gaps, .toml")
    add_shared(add, "--adapter")
    add("--label", metavar="COLUMN", help="the column to be predicted")
    text = "where the label is a time: the column that says whether the event was seen then"
    add("--event", metavar="COLUMN", help=text)
    text = "a code book: a CSV with the columns name,type,min,max,categories,unit, or REDCap's data dictionary"
    add("--codebook", metavar="CSV", help=text)
    add("--epsilon", type=above_zero, metavar="E", help="the promise")
    add("--out", metavar="PLAN", help="file to write (default: print it); an existing one is kept")
    add = command.add_argument_group("over nodes: ask them for bounds, classes and the number of records").add_argument
    add("--federated", action="store_true", help="as the coordinator of a roster; the answers are noised and charged")
    text = "who adds the noise, where DATA is a table's header; sites have to allow it (distributed)"
    add_nodes(add, text, "where the survey is journalled; started again, it goes on")
    add("--seed", type=whole(0), metavar="N", help="noise from a seed: voids the plan's guarantee")
    add_shared(command.add_argument, "--json")
    text = "make a plan from a definition of an OMOP cohort and its columns, or print the query of a plan's [omop]"
    add = add_command(actions, "from-omop", from_omop, text)
    add("definition", metavar="FILE", help="a TOML file with [omop] (docs/omop.md), or a plan that was made from one")
    add("--sql", choices=list(DIALECTS), metavar="DIALECT", help=f"print the query instead: {', '.join(DIALECTS)}")
    text = "the survey.json of a survey of its plan: what it found takes the place of the column of concepts"
    add("--survey", metavar="SURVEY", help=text)
    add("--out", metavar="PLAN", help="file to write (default: print it); an existing one is kept")
    text = "print a JSON Schema, by which editors underline what a file may not say"
    add = add_command(commands, "schema", schema, text)
    add("kind", choices=("plan", "policy", "roster", "adapter"), metavar="KIND", help="plan, policy, roster or adapter")
    add("--out", metavar="FILE", help="file to write (default: print it)")


def start(arguments: argparse.Namespace) -> None:
    """Write the folder, and say what to type in it."""
    from hedgerow.app.starter import start_study

    folder = Path(arguments.folder)
    print_facts([("wrote", join_names(path.name for path in start_study(folder)))])
    note(f"Begin with README.md, or rehearse it: {format_command(f'cd {shlex.quote(str(folder))}; python study.py')}")


def schema(arguments: argparse.Namespace) -> None:
    """Print a JSON Schema, or write it where a file's first line says that it is."""
    from hedgerow.app.schema import build_schema
    from hedgerow.models.model import write_atomically

    text = f"{json.dumps(build_schema(arguments.kind), indent=1)}\n"
    if arguments.out is None:
        print(text, end="")
    else:
        write_atomically(check_can_write(arguments.out), text.encode())


def init(arguments: argparse.Namespace) -> None:
    """Print the draft, or write it to a file that does not exist yet; with --federated, the plan of a survey."""
    from hedgerow.data.drafts import draft_plan, read_codebook

    if arguments.event is not None and arguments.federated:
        raise UsageError("usage-beside", option="--event", other="--federated")
    if arguments.federated:
        init_federated(arguments)
        return
    if arguments.label is None:
        raise UsageError("usage-missing", missing="--label")
    out = None if arguments.out is None else new_file(arguments.out)
    place = adapt_table(arguments.data, arguments.adapter)
    text = draft_plan(
        place,
        arguments.label if arguments.event is None else (arguments.label, arguments.event),
        epsilon=arguments.epsilon or 1.0,
        codebook=None if arguments.codebook is None else read_codebook(arguments.codebook),
    )
    _write(text, out)
    _say_what_cells_suggest(place)


def _say_what_cells_suggest(place: Location) -> None:
    """On its owner's screen, and nowhere else: types of columns, as the cells of a table suggest them."""
    from hedgerow.app.fit import whose_rows
    from hedgerow.data.drafts import summarise, usable_columns
    from hedgerow.data.sources import column_names

    try:
        summaries = summarise(place, usable_columns(column_names(place)))
    except DataError as fault:
        # A header is enough for a draft, which has been written.
        if fault.code != "data-empty":
            warn(str(fault))
        return
    if question := whose_rows(place, list(summaries)):
        note(f"Private, for your eyes only, and not in the draft: {question}")
    said = "; ".join(f"{name}: {summary.suggests}" for name, summary in summaries.items() if summary.n_values)
    note(f"Private, for your eyes only, and not in the draft: the cells suggest the types {said}. A code book decides.")


def _write(text: str, out: Path | None) -> None:
    """Print a draft, or write it and say what is left to do."""
    from hedgerow.app.schema import write_beside
    from hedgerow.models.model import write_atomically

    if out is None:
        print(text, end="")
        return
    write_atomically(out, text.encode())
    write_beside(out, "plan")
    n_open = len(re.findall(r"^# \w+ = .*# FILL IN", text, re.M))
    kinds = " that go with each type" if re.search("^# type = .*# FILL IN", text, re.M) else ""
    rest = f" In it, fill in the {n_open} lines marked FILL IN{kinds}; then" if n_open else " Now"
    note(f"Wrote {out}.{rest} see what it costs: {format_command(f'hedgerow privacy {out}')}")


def from_omop(arguments: argparse.Namespace) -> None:
    """Print the plan of a definition, or the query of one, or write it to a file that does not exist yet."""
    from hedgerow.app.fit import use_survey
    from hedgerow.data.omop import compile_query
    from hedgerow.models.model import write_atomically
    from hedgerow.plan.omop import charge_survey, fill_plan, take_concepts

    plan = Plan.from_dict(fill_plan(read_table(read_text(arguments.definition))))
    if arguments.survey is not None:
        definition = plan.to_dict()

        def take(survey: dict[str, Any]) -> dict[str, Any]:
            paid = Plan.from_dict(charge_survey(definition, survey))
            return take_concepts(paid.to_dict(), survey)

        plan = Plan.from_dict(use_survey(arguments.survey, take))
    out = None if arguments.out is None else new_file(arguments.out)
    if arguments.sql is None or plan.omop is None:
        _write(plan_toml(plan), out)
        return
    text = f"{compile_query(plan.omop, plan.label, arguments.sql)}\n"
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode())


# A plan that a survey fills -------------------------------------------------------------------------------------------

USUAL_DELTA = 1e-6
_N_TRIAL = 1000


def init_federated(arguments: argparse.Namespace) -> None:
    """Ask the sites, write the plan, say what was found and what it cost."""
    # Extras: only a party that dials or listens needs grpc, only one that reads tables needs pyarrow.
    from hedgerow.app.coordinator import CoordinatorOptions, serve
    from hedgerow.app.survey import PlanFile, no_label, save_plan
    from hedgerow.local.forecast import propose_groups
    from hedgerow.methods.tasks import SurveyTask, TrainingTask
    from hedgerow.plan.toml import plan_toml, toml_without_label
    from hedgerow.survey.bounds import Findings, Range

    _check(arguments)
    asked = read_open_plan(arguments)
    # What can be refused without a survey is refused before it is paid for.
    table = asked.trial.to_dict()
    table["privacy"]["n_records"] = min(table["privacy"]["n_records"], _N_TRIAL)
    # Raises where no noise would keep the promise of the plan that comes of it.
    _ = TrainingTask(Plan.from_dict(table)).settings
    task = SurveyTask(asked)
    out = check_can_write(arguments.out)
    journal = Path(arguments.journal or f"{out}.survey.journal")

    def conclude(outcome: Outcome, session: RunSession) -> tuple[Plan, bool]:
        """The plan, and whether the classes or the range of its label were not found."""
        found, lacks_label = outcome.findings, False
        if asked.label_asked and isinstance(found, Findings) and found.lacks_label:
            trial = replace(found, classes=(0, 1), label=None if found.label is None else Range(0.0, 1.0))
            lacks_label, outcome = True, replace(outcome, findings=trial)
        if not isinstance(outcome.findings, Findings):
            raise HedgerowError("no-result", result="numbers")
        plan = asked.filled(outcome.findings, outcome.ledger, session.run.run_id)
        if "groups" not in asked.table.get("federation", {}):
            plan = propose_groups(plan, len(session.run.sites)) or plan
        return plan, lacks_label

    def write(outcome: Outcome, session: RunSession) -> None:
        plan, lacks_label = conclude(outcome, session)
        save_plan(out, toml_without_label(plan) if lacks_label else plan_toml(plan))

    file = PlanFile(out, journal, write, arguments.new_run, arguments.json)
    outcome, session = serve(read_options(CoordinatorOptions, arguments), task.plan, file, task)
    plan, lacks_label = conclude(outcome, session)
    if not (lacks_label and arguments.json):
        _print_survey(arguments, plan, outcome, session, asked)
    if lacks_label:
        raise no_label(plan.label.name, outcome.report.epsilon, out)


def read_open_plan(arguments: argparse.Namespace) -> OpenPlan:
    """What is asked for: a TOML file's plan with its gaps, or all columns of a table's header as numbers."""
    from hedgerow.data.drafts import usable_columns
    from hedgerow.data.sources import column_names
    from hedgerow.survey.requests import OpenPlan, parse_open_plan

    if arguments.data.lower().endswith(".toml"):
        adapt_sites({}, [] if arguments.adapter is None else [arguments.adapter])
        return parse_open_plan(read_text(arguments.data))

    names = usable_columns(column_names(adapt_table(arguments.data, arguments.adapter)))
    if arguments.label is None:
        raise UsageError("usage-missing", missing="--label")
    if arguments.epsilon is None:
        raise UsageError("usage-missing", missing="--epsilon")
    noise = arguments.noise or "distributed"
    return OpenPlan(
        {
            "version": PLAN_VERSION,
            "name": "surveyed",
            "privacy": {"epsilon": arguments.epsilon, "delta": USUAL_DELTA, "noise": noise},
            "label": {"name": arguments.label, "type": "binary"},
            "features": [{"name": name, "type": "numeric"} for name in names if name != arguments.label],
        }
    )


def _check(arguments: argparse.Namespace) -> None:
    missing = [name for name in ("roster", "identity", "out") if getattr(arguments, name) is None]
    if missing:
        raise UsageError("usage-missing", missing=f"--{missing[0]}")
    if arguments.codebook is not None:
        raise UsageError("usage-beside", option="--codebook", other="--federated")
    if arguments.data.lower().endswith(".toml"):
        given = [name for name in ("label", "epsilon", "noise") if getattr(arguments, name) is not None]
        if given:
            raise UsageError("usage-beside", option=f"--{given[0]}", other=f"{arguments.data}, which says it itself")


def _print_survey(
    arguments: argparse.Namespace, plan: Plan, outcome: Outcome, session: RunSession, asked: OpenPlan
) -> None:
    from hedgerow.app.cost import groups_text
    from hedgerow.app.progress import list_contributors, survey_facts
    from hedgerow.survey.bounds import Findings

    sites = list_contributors(session)
    cost = outcome.report.epsilon
    if arguments.json:
        spent = {"epsilon": None if math.isinf(cost) else cost, "delta": plan.privacy.delta}
        print_json({"plan": arguments.out, "plan_digest": plan.digest, "sites": sites, "cost": spent})
        return
    if outcome.report.seeded:
        warn_seeded()
    facts = [("sites", f"{len(sites)}: {join_names(sites)}")]
    if isinstance(outcome.findings, Findings):
        facts += survey_facts(outcome.findings, asked.columns)
    facts.append(("groups of sites", groups_text(plan, len(session.run.sites))))
    print_facts([*facts, ("plan", f"written to {arguments.out}, with the survey's releases on its account")])
    print(f"\n  The survey alone cost epsilon {number(cost, 6)} at delta {plan.privacy.delta:.3g}.")
    note(f"Now see what a run of the plan costs with it: {format_command(f'hedgerow privacy {arguments.out}')}")
