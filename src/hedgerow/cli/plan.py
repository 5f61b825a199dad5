# SPDX-License-Identifier: Apache-2.0
"""``hedgerow plan``: `init` drafts a plan from a table's header, and `from-omop` one of an OMOP database's persons."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

from hedgerow.app.inputs import adapt_table, check_can_write, join_names, new_file, read_text
from hedgerow.app.output import format_command, note, print_facts
from hedgerow.cli.options import above_zero, add_command, add_group, add_shared
from hedgerow.data.omop import DIALECTS
from hedgerow.plan.plan import Plan, read_table
from hedgerow.plan.toml import plan_toml


def add_commands(commands: Any) -> None:
    """Add `init`, `plan init`, `plan from-omop` and `schema`."""
    text = "write a folder to begin a study in: a plan, made-up tables of three sites, a script"
    add = add_command(commands, "init", start, text)
    add("folder", metavar="FOLDER", help="a new one, or one with nothing in it")
    actions = add_group(commands, "plan", "draft a plan")
    add = add_command(actions, "init", init, "draft a commented plan from a table's header")
    add("data", metavar="DATA", help="a .csv, .csv.gz or .parquet file")
    add_shared(add, "--adapter")
    add("--label", required=True, metavar="COLUMN", help="the column to be predicted")
    text = "where the label is a time: the column that says whether the event was seen then"
    add("--event", metavar="COLUMN", help=text)
    text = "a code book: a CSV with the columns name,type,min,max,categories,unit, or REDCap's data dictionary"
    add("--codebook", metavar="CSV", help=text)
    add("--epsilon", type=above_zero, default=1.0, metavar="E", help="the promise (%(default)s)")
    add("--out", metavar="PLAN", help="file to write (default: print it); an existing one is kept")
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
    """Write the starter folder, and print the next command."""
    from hedgerow.app.starter import start_study

    folder = Path(arguments.folder)
    print_facts([("wrote", join_names(path.name for path in start_study(folder)))])
    note(f"Begin with README.md, or rehearse it: {format_command(f'cd {shlex.quote(str(folder))}; python study.py')}")


def schema(arguments: argparse.Namespace) -> None:
    """Print a JSON Schema, or write it to a file."""
    from hedgerow.app.schema import build_schema
    from hedgerow.models.model import write_atomically

    text = f"{json.dumps(build_schema(arguments.kind), indent=1)}\n"
    if arguments.out is None:
        print(text, end="")
    else:
        write_atomically(check_can_write(arguments.out), text.encode())


def init(arguments: argparse.Namespace) -> None:
    """Print a draft, or write it to a new file; no cell of the table is read."""
    from hedgerow.data.drafts import draft_plan, read_codebook

    out = None if arguments.out is None else new_file(arguments.out)
    text = draft_plan(
        adapt_table(arguments.data, arguments.adapter),
        arguments.label if arguments.event is None else (arguments.label, arguments.event),
        epsilon=arguments.epsilon,
        codebook=None if arguments.codebook is None else read_codebook(arguments.codebook),
    )
    _write(text, out)


def _write(text: str, out: Path | None) -> None:
    """Print a draft, or write it and list what is left to do."""
    from hedgerow.app.schema import write_beside
    from hedgerow.models.model import write_atomically

    if out is None:
        print(text, end="")
        return
    write_atomically(out, text.encode())
    write_beside(out, "plan")
    n_open = len(re.findall(r"^# \w+ = .*# FILL IN", text, re.M))
    kinds = ", of a column those that go with its type" if re.search("^# type = .*# FILL IN", text, re.M) else ""
    rest = f" Fill in the {n_open} lines marked FILL IN{kinds}; then" if n_open else " Now"
    note(f"Wrote {out}.{rest} see what it costs: {format_command(f'hedgerow privacy {out}')}")


def from_omop(arguments: argparse.Namespace) -> None:
    """Print the plan of a definition, or its query, or write it to a new file."""
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
