"""``hedgerow node``: take part in a run with this site's table, within what its owner allows."""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from hedgerow.cli.budget_place import OLD_BOOK, note_book
from hedgerow.cli.evaluate_sites import score_facts
from hedgerow.cli.federation_inputs import address_of, read_policy, signing_key, signing_roster
from hedgerow.cli.inputs import read_plan
from hedgerow.cli.node_inputs import (
    arrivals_of,
    check_table,
    loader,
    model_digest,
    note_leaving,
    note_reserved,
    with_rows_read,
)
from hedgerow.cli.output import note, print_facts, print_json, warn
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_run import NodeSetup, check_own_plan, no_held_out_rows, no_training_rows
from hedgerow.client.policy import Policy
from hedgerow.client.run import run_node
from hedgerow.client.session import NodeSession
from hedgerow.client.store import NodeStore
from hedgerow.client.warm_up import warm_up
from hedgerow.data.site_data import SiteData
from hedgerow.errors import UsageError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.protocol.wire.refusals import EXPLANATIONS, WireCode, known
from hedgerow.threads import available_threads, use_threads
from hedgerow.transport.grpc_uplink import GrpcUplink
from hedgerow.transport.identity_files import read_private
from hedgerow.transport.interface import Connected, Disconnected, Repeats, times
from hedgerow.transport.roster_file import read_roster
from hedgerow.trees.ensemble import Ensemble

PATIENCE = 7 * 24 * 3600.0
"""Seconds that a node without a plan waits for its coordinator; afterwards the plan's own timeout counts."""


def run(arguments: argparse.Namespace) -> None:
    """Join, answer until the run is over, say what it has cost."""
    plan = None if arguments.plan is None else read_plan(arguments.plan)
    policy = read_policy(arguments.policy)
    pinned = read_roster(Path(arguments.roster))
    identity = read_private(Path(arguments.identity))
    host, port = address_of(arguments.connect, "--connect")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = identity.public.name
    folder = Path(arguments.state or Path(arguments.identity).parent / f"{name}-state")
    with use_threads(arguments.threads or available_threads()) as n_threads:
        load, load_held_out = _loaders(arguments, policy)
        noise = SystemNoise(os.urandom)
        keys = (signing_key(identity), signing_roster(pinned))
        models = frozenset(model_digest(path) for path in arguments.models or ())
        setup = NodeSetup(
            name, *keys, policy, os.urandom, noise, load, plan, n_threads, load_held_out, models,
            arrivals=arrivals_of(arguments.arrivals, strict=policy.is_strict, tell=note),
        )  # fmt: skip
        # What the owner can mend is said at once, and before anyone is dialled.
        check_own_plan(setup)
        setup = with_rows_read(setup)
        warm_up(plan, n_threads)
        store = NodeStore(folder)
        book = BudgetBook(note_book(folder, book_file(arguments, name, folder)))
        try:
            if arguments.leave:
                note_leaving(store, book, name)
            session = NodeSession(setup, store, book)
            if session.set_aside is not None:
                note(f"{name}: {session.set_aside} ({session.set_aside.code})")
            digest = b"" if plan is None else bytes.fromhex(plan.digest)
            # Not for secrets: it only keeps nodes from coming back all at once.
            uplink = GrpcUplink(address, identity, pinned, random.random, plan_digest=digest)
            try:
                if not arguments.json:
                    note(f"{name}: dialling {address}.")
                observer = None if arguments.json else ConnectionNotes()
                result = run_node(session, uplink, time.monotonic, PATIENCE, observer)
                if session.salvaged is not None and not arguments.json:
                    warn(session.salvaged.text())
            finally:
                uplink.close()
            _print(arguments, name, result, book, policy)
        finally:
            if not arguments.json:
                note_reserved(store, book, name)
            book.close()
            store.close()


def book_file(arguments: argparse.Namespace, name: str, folder: Path) -> Path:
    """The budget book: as told, else the one that the state folder has from an older version, else beside the policy.

    It is not in the state folder, which people delete to begin anew: what the data has cost must outlive that.
    """
    if arguments.budget:
        return Path(arguments.budget)
    old = folder / OLD_BOOK
    return old if old.exists() else Path(arguments.policy).parent / f"{name}-budget.db"


class ConnectionNotes:
    """Tells the owner why nothing happens, and that it is over; less and less often where that goes on and on."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def __call__(self, event: Connected | Disconnected) -> None:
        """Take note of what became of the connection."""
        if isinstance(event, Connected):
            said = "Connected."
        elif event.is_final or event.reason == WireCode.CLOSED:
            return
        else:
            row = EXPLANATIONS[known(event.reason)]
            said = f"{row.what} {row.cause} {row.remedy} The node tries again. ({known(event.reason).value})"
        if count := self._repeats.note("coordinator", said):
            note(said + times(count))


def _loaders(
    arguments: argparse.Namespace, policy: Policy
) -> tuple[Callable[[Plan], SiteData], Callable[[Plan], SiteData]]:
    """How rows to train on are read, and rows that are held out; raises DataError for a table that is not there."""
    if arguments.data is None and arguments.held_out is None:
        raise UsageError(
            "There are no rows: DATA and --held-out are both missing.",
            remedy="Give a table to train on, or --held-out TABLE to evaluate on, or both.",
            code="usage",
        )
    load: Callable[[Plan], SiteData] = no_training_rows
    load_held_out: Callable[[Plan], SiteData] = no_held_out_rows
    if arguments.data is not None or arguments.query is not None:
        load = loader(arguments.data or "", arguments.query, strict=policy.is_strict, tell=note)
        check_table(arguments.data or "")
    if arguments.held_out is not None or arguments.held_out_query is not None:
        held_out, query = arguments.held_out or "", arguments.held_out_query
        load_held_out = loader(held_out, query, strict=policy.is_strict, tell=note)
        check_table(held_out)
    return load, load_held_out


def _print(
    arguments: argparse.Namespace, name: str, result: Ensemble | Evaluation, book: BudgetBook, policy: Policy
) -> None:
    spent = book.spent(policy.data_set, policy.delta)
    if arguments.json:
        budget = {"data_set": policy.data_set, "spent": spent, "max_epsilon": policy.max_epsilon, "delta": policy.delta}
        found = {"n_trees": result.n_trees} if isinstance(result, Ensemble) else {"evaluation": result.to_dict()}
        print_json({"site": name, **found, "budget": budget})
        return
    facts = [("site", name)]
    if isinstance(result, Ensemble):
        facts.append(("model", f"{result.n_trees} trees"))
    else:
        facts += score_facts(result)
    budget_text = f"{policy.data_set}: epsilon {spent:.4g} of {policy.max_epsilon:g} at delta {policy.delta:g}"
    print_facts([*facts, ("budget", budget_text)])
