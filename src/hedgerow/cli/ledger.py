"""``hedgerow ledger``: what all runs together have cost a site's data, and what its owner's policy leaves."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.cli.budget_place import book_of
from hedgerow.cli.federation_inputs import read_policy
from hedgerow.cli.output import number, print_facts, print_json
from hedgerow.client.budget import BudgetBook
from hedgerow.protocol.errors import UsageError


def run(arguments: argparse.Namespace) -> None:
    """Print the budget book."""
    file = book_of(Path(arguments.state))
    if not file.is_file():
        raise UsageError(
            f"{arguments.state}: there is no budget book here.",
            cause="No node has taken part in a run with it, or it is another file or folder.",
            remedy="Give what `hedgerow node` was given with --budget or --state.",
            code="budget-not-found",
        )
    policy = None if arguments.policy is None else read_policy(arguments.policy)
    delta = arguments.delta if policy is None else policy.delta
    book = BudgetBook(file)
    try:
        content = _content(book, delta)
    finally:
        book.close()
    if policy is not None:
        for data_set in content["data_sets"]:
            if data_set["data_set"] == policy.data_set:
                data_set["max_epsilon"] = policy.max_epsilon
    if arguments.json:
        print_json(content)
        return
    _print(content)


def _content(book: BudgetBook, delta: float) -> dict[str, Any]:
    names = list(dict.fromkeys(line.data_set for line in book.lines()))
    return {
        "delta": delta,
        "data_sets": [
            {
                "data_set": name,
                "epsilon": book.spent(name, delta),
                "runs": [
                    {
                        "run_id": line.run_id,
                        "plan": line.plan_name,
                        "plan_digest": line.plan_digest,
                        "unit": line.unit,
                        "status": line.status,
                        "epsilon": line.epsilon(delta),
                    }
                    for line in book.lines(name)
                ],
            }
            for name in names
        ],
    }


def _print(content: dict[str, Any]) -> None:
    for data_set in content["data_sets"]:
        limit = f" of {number(data_set['max_epsilon'])}" if "max_epsilon" in data_set else ""
        print(f"{data_set['data_set']}: epsilon {number(data_set['epsilon'])}{limit} at delta {content['delta']:g}")
        print_facts([(run["run_id"][:12], _line(run)) for run in data_set["runs"]])


def _line(run: dict[str, Any]) -> str:
    return f"{run['status']:<9} epsilon {number(run['epsilon']):<8} {run['plan']} (per {run['unit']})"
