"""``hedgerow node``: take part in a run with this site's table, within what its owner allows."""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from hedgerow.cli.federation_inputs import address_of, read_policy, signing_key, signing_roster
from hedgerow.cli.inputs import read_plan
from hedgerow.cli.output import note, print_facts, print_json
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import SiteData
from hedgerow.client.node_run import NodeSetup
from hedgerow.client.policy import Policy
from hedgerow.client.reading_sql import read_sql_records
from hedgerow.client.run import run_node
from hedgerow.client.session import NodeSession
from hedgerow.client.store import NodeStore
from hedgerow.client.warm_up import read_early, warm_up
from hedgerow.privacy.noise import SystemNoise
from hedgerow.protocol.errors import UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.wire.refusals import EXPLANATIONS, WireCode, known
from hedgerow.site_data import read_site_data, site_data_from_records
from hedgerow.threads import available_threads, use_threads
from hedgerow.transport.grpc_uplink import GrpcUplink
from hedgerow.transport.identity_files import read_private
from hedgerow.transport.interface import Connected, Disconnected
from hedgerow.transport.roster_file import read_roster

BUDGET_FILE = "budget.db"
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
        warm_up(plan, n_threads)
        load = read_early(loader(arguments.data, arguments.query), plan)
        noise = SystemNoise(os.urandom)
        keys = (signing_key(identity), signing_roster(pinned))
        setup = NodeSetup(name, *keys, policy, os.urandom, noise, load, plan, n_threads)
        store = NodeStore(folder)
        book = BudgetBook(Path(arguments.budget) if arguments.budget else folder / BUDGET_FILE)
        try:
            session = NodeSession(setup, store, book)
            digest = b"" if plan is None else bytes.fromhex(plan.digest)
            # Not for secrets: it only keeps nodes from coming back all at once.
            uplink = GrpcUplink(address, identity, pinned, random.random, plan_digest=digest)
            try:
                if not arguments.json:
                    note(f"{name}: dialling {address}.")
                observer = None if arguments.json else _say_of_connection
                ensemble = run_node(session, uplink, time.monotonic, PATIENCE, observer)
            finally:
                uplink.close()
            _print(arguments, name, ensemble.n_trees, book, policy)
        finally:
            book.close()
            store.close()


def _say_of_connection(event: Connected | Disconnected) -> None:
    """Tell the owner why nothing happens, and that it is over."""
    if isinstance(event, Connected):
        note("Connected.")
    elif not event.is_final and event.reason != WireCode.CLOSED:
        row = EXPLANATIONS[known(event.reason)]
        note(f"{row.what} {row.cause} {row.remedy} The node tries again. ({event.reason})")


def loader(data: str, query: str | None) -> Callable[[Plan], SiteData]:
    """How the site's rows are read once there is a plan.

    Raises:
        UsageError: a URL without a query, or a query without a URL.
    """
    is_url = "://" in data
    if is_url != (query is not None):
        raise UsageError(
            "A database's URL and --query belong together.",
            remedy="Give both, or the path of a file and no query.",
            code="query-without-url",
        )
    if query is None:
        return lambda plan: read_site_data(data, plan)[0]
    return lambda plan: site_data_from_records(read_sql_records(data, query, plan), plan)[0]


def _print(arguments: argparse.Namespace, name: str, n_trees: int, book: BudgetBook, policy: Policy) -> None:
    spent = book.spent(policy.data_set, policy.delta)
    if arguments.json:
        budget = {"data_set": policy.data_set, "spent": spent, "max_epsilon": policy.max_epsilon, "delta": policy.delta}
        print_json({"site": name, "n_trees": n_trees, "budget": budget})
        return
    print_facts(
        [
            ("site", name),
            ("model", f"{n_trees} trees"),
            ("budget", f"{policy.data_set}: epsilon {spent:.4g} of {policy.max_epsilon:g} at delta {policy.delta:g}"),
        ]
    )
