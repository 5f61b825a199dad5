"""``hedgerow node``: take part in a run with this site's table, within what its owner allows."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.evaluation import score_facts
from hedgerow.app.inputs import dial_address, is_terminal
from hedgerow.app.node import NodeOptions, NodeResult, stay, take_part
from hedgerow.app.output import begin_log, print_facts, print_json
from hedgerow.app.progress import survey_facts
from hedgerow.cli.options import read_options
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.survey.bounds import Findings
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.transport.identities import read_private
from hedgerow.trees.ensemble import Ensemble

if TYPE_CHECKING:
    from hedgerow.app.page import SitePage


def run(arguments: argparse.Namespace) -> None:
    """Take part in one run, or with --serve in one after another; a page stays beyond that."""
    address = dial_address(arguments.connect, "--connect")
    options = read_options(NodeOptions, arguments, address=address, models=tuple(arguments.allowed or ()))
    report = partial(print_result, as_json=arguments.json)
    where: AbstractContextManager[SitePage | None] = nullcontext()
    if arguments.console is not None:
        # An extra: only who wants the page needs it.
        from hedgerow.app.page import SitePage

        name = read_private(Path(arguments.identity)).public.name
        begin_log(name, arguments.log_format)
        where = SitePage(arguments.console, name)
    with where as page:
        if arguments.serve:
            stay(options, report, page, asks=is_terminal())
        else:
            report(take_part(options, page, asks=is_terminal()))
        if page is not None:
            page.wait()


def print_result(done: NodeResult, *, as_json: bool) -> None:
    """What a run was for, and what this site's data have cost by now."""
    result, policy, spent = done.result, done.policy, done.spent
    if as_json:
        found: dict[str, Any]
        if isinstance(result, Ensemble):
            found = {"n_trees": result.n_trees}
        elif isinstance(result, Evaluation):
            found = {"evaluation": result.to_dict()}
        else:
            found = {"survey": asdict(result)} if isinstance(result, Findings) else {"statistics": result.to_dict()}
        budget = {"data_set": policy.data_set, "spent": spent, "max_epsilon": policy.max_epsilon, "delta": policy.delta}
        print_json({"site": done.site, **found, "budget": budget})
        return
    facts = [("site", done.site)]
    if isinstance(result, Ensemble):
        facts.append(("model", f"{result.n_trees} trees"))
    elif isinstance(result, Findings):
        facts += survey_facts(result, done.surveyed)
    elif isinstance(result, Evaluation):
        facts += score_facts(result)
    elif isinstance(result, SurvivalCurves):
        facts.append(("curves", f"of {len(result.curves)} groups"))
    else:
        facts.append(("statistics", f"of {len(result.columns)} columns"))
    budget_text = f"{policy.data_set}: epsilon {spent:.4g} of {policy.max_epsilon:g} at delta {policy.delta:g}"
    print_facts([*facts, ("budget", budget_text)])
