# SPDX-License-Identifier: Apache-2.0
"""``hedgerow ledger``: what all runs together have cost a site's data, and the end of one that is reserved."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import read_policy
from hedgerow.app.output import note, number, print_facts, print_json
from hedgerow.cli.options import add_command
from hedgerow.errors import EnvironmentFault, UsageError
from hedgerow.privacy.rounding import format_up

if TYPE_CHECKING:
    from hedgerow.client.budget import BudgetBook, BudgetLine, InvitationLine
    from hedgerow.client.state import NodeStore


_MIN_DIGITS = 8


def add_commands(commands: Any) -> None:
    """Add `ledger`."""
    add = add_command(commands, "ledger", run, "show what all runs have cost a site's data")
    text = "a budget book, a folder of tables, a node's folder (`--state`), or a site's folder of a study"
    add("state", metavar="BOOK", help=text)
    text = "the owner's policy: show what is left of its epsilon (a site's folder of a study has one)"
    add("--policy", metavar="FILE", help=text)
    add("--delta", type=float, default=1e-6, metavar="D", help="without a policy: at this delta")
    text = "end a reserved run, named by its first digits: charged for what has left, and never taken up again"
    add("--close", metavar="RUN", help=text)
    text = "let the sites' seed be drawn again for a plan, named by the first digits of its digest, after many runs "
    add("--allow-draws", metavar="PLAN", help=text + "that were given up before a vector was masked")
    text = "charge the policy's data set, and no other, for its runs that the book has lost (`budget-rolled-back`)"
    add("--lost", type=float, metavar="EPSILON", help=text)
    text = "list what coordinators have asked this site for, and the answers"
    add("--invitations", action="store_true", help=text)
    add("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Close a run or set a plan's draws back, if one is named, and print the budget book."""
    from hedgerow.app.inputs import POLICY
    from hedgerow.client.budget import RESERVED, BudgetBook, find_book, fold_name

    given, named = Path(arguments.state), arguments.policy
    if (given / "state").is_dir():
        named, given = named or str(given / POLICY), given / "state"
    file = find_book(given)
    if not file.is_file():
        wanted = "a budget book, or a folder that has one: of tables, or of a node (--state)"
        raise UsageError("not-found", code="budget-not-found", path=arguments.state, wanted=wanted)
    policy = None if named is None else read_policy(named)
    delta = arguments.delta if policy is None else policy.delta
    book = BudgetBook(file)
    try:
        closed = [] if arguments.close is None else _close(book, arguments.close, given)
        forgotten: dict[str, int] = {}
        if (wanted := arguments.allow_draws) is not None:
            # Set-ups of a plan are set back for all nodes with this book.
            forgotten = book.forget_draws(wanted.lower()) if len(wanted) >= _MIN_DIGITS else {}
            if not forgotten:
                raise UsageError("no-draws", wanted=wanted, least=_MIN_DIGITS)
        if arguments.lost is not None:
            if policy is None:
                raise UsageError("usage-needs", option="--lost", other="--policy")
            book.charge_lost(policy.data_set, policy.unit, arguments.lost, policy.delta)
        content = book.describe(delta)
        asked = book.invitations()
    finally:
        book.close()
    if policy is not None:
        for data_set in content["data_sets"]:
            if fold_name(data_set["data_set"]) == fold_name(policy.data_set):
                data_set["max_epsilon"] = policy.max_epsilon
    if arguments.json:
        content |= {"closed": closed} if arguments.close else {}
        content |= {"allowed_draws": forgotten} if forgotten else {}
        content |= {"invitations": [dataclasses.asdict(line) for line in asked]} if arguments.invitations else {}
        print_json(content)
        return
    for line in closed:
        name = f"{line['run_id'][:12]}{' of ' + line['site'] if line['site'] else ''}"
        how = ", charged for what has left its node. It is never taken up again."
        if not line["is_known"]:
            how = ". The node's state is gone, so what has left it is not known: all that was reserved stays charged."
        note(f"The run {name} is closed{how}")
    for digest, count in forgotten.items():
        note(f"{count} set-up(s) of the plan {digest[:12]} are counted no more: the seed may be drawn again.")
    for data_set in content["data_sets"]:
        limit = f" of {number(data_set['max_epsilon'])}" if "max_epsilon" in data_set else ""
        name = data_set["data_set"] or "All rows (without --data-set)"
        by_unit = data_set.get("epsilon_by_unit", {"": data_set["epsilon"]})
        total = ", ".join(
            f"epsilon {format_up(epsilon, 4)}{' per ' * bool(unit)}{unit}" for unit, epsilon in by_unit.items()
        )
        print(f"{name}: {total}{limit} at delta {format_up(delta)}")
        is_shared = len({run["site"] for run in data_set["runs"]}) > 1
        print_facts([(f"run {run['run_id'][:12]}", _format_run(run, is_shared=is_shared)) for run in data_set["runs"]])
    _say_invitations(asked, is_list=arguments.invitations)
    reserved = [line for data_set in content["data_sets"] for line in data_set["runs"] if line["status"] == RESERVED]
    close = f"`hedgerow ledger {shlex.quote(arguments.state)} --close RUN`"
    if any(line["site"] for line in reserved):
        note(
            "A run that is reserved may go on: start its node again. If it shall not, end it with "
            f"{close}, and what it did not use is free again."
        )
    if any(not line["site"] for line in reserved):
        note("A run of a command or a fit that is reserved goes on, or was killed: then all of it stays charged.")


def _close(book: BudgetBook, wanted: str, given: Path) -> list[dict[str, Any]]:
    """Close a run for all nodes with this book, or only for the node of the folder `given`.

    Raises:
        UsageError: code "run-not-reserved", or "run-in-use" while a node works with its folder.
    """
    from hedgerow.client.budget import RESERVED
    from hedgerow.client.joining import close_reserved

    lines = [line for line in book.lines() if line.status == RESERVED and line.run_id.startswith(wanted.lower())]
    if given.is_dir():
        lines = [line for line in lines if _find_folder(line, given) == given.resolve()]
    if len(wanted) < _MIN_DIGITS or len({line.run_id for line in lines}) != 1:
        raise UsageError("run-not-reserved", wanted=wanted, least=_MIN_DIGITS)
    closed = []
    with ExitStack() as open_files:
        # All are opened before one is closed: as long as a node works with its folder, nothing is.
        found = _own_stores(lines, given, open_files)
        if given.is_dir() and any(store is not None for _, store in found):
            # The folder is of one node, and only its line is meant.
            found = [(line, store) for line, store in found if store is not None]
        for line, store in found:
            book.serve(line.site, line.state)
            is_known = close_reserved(store, book, bytes.fromhex(line.run_id))
            closed.append({"run_id": line.run_id, "site": line.site, "state": line.state, "is_known": is_known})
    return closed


def _find_folder(line: BudgetLine, given: Path) -> Path:
    """Return a line's state folder; if it is gone, the folder given by the user, if that is one."""
    noted = Path(line.state)
    return given.resolve() if given.is_dir() and not (noted / "node.db").is_file() else noted


def _own_stores(
    lines: Sequence[BudgetLine], given: Path, open_files: ExitStack
) -> list[tuple[BudgetLine, NodeStore | None]]:
    """Pair each line with its own node's state, or None: another node's state does not tell its cost."""
    folders = [_find_folder(line, given) for line in lines]
    opened = {folder: _open_store(folder, open_files) for folder in dict.fromkeys(folders)}
    stores = [opened[folder] for folder in folders]
    return [
        (line, store if store is not None and store.sites() == {line.site} else None)
        for line, store in zip(lines, stores, strict=True)
    ]


def _open_store(folder: Path, open_files: ExitStack) -> NodeStore | None:
    from hedgerow.client.state import NodeStore

    if not (folder / "node.db").is_file():
        return None
    try:
        return open_files.enter_context(closing(NodeStore(folder)))
    except EnvironmentFault as fault:
        if fault.code != "database-locked":
            raise
        raise UsageError("run-in-use", folder=folder) from fault


def _say_invitations(lines: list[InvitationLine], *, is_list: bool) -> None:
    """Print the coordinators' requests and the answers; without `is_list` only the number refused."""
    from hedgerow.client.budget import ACCEPTED

    if not is_list:
        if n_refused := sum(line.count for line in lines if line.answer != ACCEPTED):
            print(f"{n_refused} invitation(s) of a coordinator were refused; --invitations lists them.")
        return
    print("\nInvitations (times are UTC)")
    for line in lines:
        span = line.first if line.first == line.last else f"{line.first} to {line.last}"
        what = f"{line.plan_name} ({line.plan_digest[:12]})" if line.plan_digest else "of many kinds"
        print(f"  {line.count} x {line.kind}, epsilon {format_up(line.epsilon, 4)}, {what}: {line.answer}, {span}")


def _format_run(run: dict[str, Any], *, is_shared: bool) -> str:
    site = f"{run['site']}: " if is_shared and run["site"] else ""
    said = f"epsilon {format_up(run['epsilon'], 4):<8} {run['plan']} (per {run['unit']})"
    return f"{site}{run['status']:<9} {run['begun'][:10]} {said}"
