"""A small run of a plan in memory, before the real one: by then, whoever takes part has run its code.

Python speeds a function up once it has been called about ten times, and a run may have fewer rounds than that: it would
be over before its code is fast, while every site waits for every other. So a node and a coordinator go through some
rounds first, with the real sessions, stores, keys and masks, over made-up records, for nobody and over no network.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_run import NodeSetup
from hedgerow.client.policy import Policy
from hedgerow.client.session import NodeSession
from hedgerow.client.store import NodeStore
from hedgerow.data.site_data import SiteData
from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.protocol.script import RunState
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.roster import Roster, Site
from hedgerow.server.journal import Journal
from hedgerow.server.run_setup import RunSetup
from hedgerow.server.session import RunSession
from hedgerow.trees.binning import build_grid

_N_SITES, _N_RECORDS, _N_ROUNDS = 3, 64, 16
_LARGEST = 1 << 16
"""Entries of an answer: beyond, a round is mostly the work of kernels, which are compiled already."""
_MOST_CHOICES = 20_000
"""Trees times features: beyond, it takes long to choose what the trees of the rehearsal may ask for."""


def rehearse_run(plan: Plan, n_threads: int = 1) -> int:
    """Carry out some rounds of a plan, of which nothing is kept; returns how many.

    A plan that cannot be carried out is not refused here, nor is a disk that cannot be written to. A process that is
    killed meanwhile leaves a temporary folder behind, with the keys of nobody.
    """
    # Whatever goes wrong here must not keep a node from the real run, where it is told to whom it concerns.
    with suppress(Exception):
        short = _shortened(plan)
        settings = TrainingTask(short).settings
        is_small = settings.n_trees * len(plan.features) <= _MOST_CHOICES
        if is_small and settings.largest_length(short) <= _LARGEST:
            with tempfile.TemporaryDirectory(prefix="hedgerow-") as folder, ExitStack() as open_files:
                return _carry_out(short, Path(folder), open_files, n_threads)
    return 0


def _shortened(plan: Plan) -> Plan:
    """The same plan for few sites, and as many trees as the rounds of the rehearsal take."""
    model = plan.model
    if isinstance(model.n_trees, int) and isinstance(model.batch_size, int):
        model = replace(model, n_trees=_N_ROUNDS * model.batch_size)
    return replace(plan, model=model, federation=replace(plan.federation, min_sites=_N_SITES))


def _carry_out(plan: Plan, folder: Path, open_files: ExitStack, n_threads: int) -> int:
    key, *site_keys = [Identity(os.urandom(32)) for _ in range(1 + _N_SITES)]
    sites = {f"site {number}": site_key for number, site_key in enumerate(site_keys)}
    roster = Roster(key.public, tuple(Site(name, site_key.public) for name, site_key in sites.items()))
    noise, rows = SystemNoise(os.urandom), _made_up_rows(plan)
    policy = Policy(
        version=1, data_set="rehearsal", max_epsilon=float("inf"), delta=plan.privacy.delta, noise=(plan.privacy.noise,)
    )
    journal = open_files.enter_context(closing(Journal(folder / "journal.db")))
    coordinator = RunSession(RunSetup(plan, roster, key, noise, os.urandom), journal)
    nodes = {}
    for name, site_key in sites.items():
        setup = NodeSetup(name, site_key, roster, policy, os.urandom, noise, lambda _: rows, plan, n_threads)
        store = open_files.enter_context(closing(NodeStore(folder / name)))
        book = open_files.enter_context(closing(BudgetBook(folder / f"{name}.db")))
        nodes[name] = NodeSession(setup, store, book)
    _converse(coordinator, nodes)
    return len(coordinator.survivors)


def _made_up_rows(plan: Plan) -> SiteData:
    dtypes = [np.int16 if feature.is_categorical else np.float32 for feature in plan.features]
    columns = tuple(np.zeros(_N_RECORDS, dtype) for dtype in dtypes)
    return SiteData(build_grid(plan).encode(columns), np.zeros(_N_RECORDS, dtype=np.int32))


def _converse(coordinator: RunSession, nodes: dict[str, NodeSession]) -> None:
    """Carry messages to and fro until the run is over: it has few rounds, of few sites."""
    on_the_way: deque[tuple[str, bytes]] = deque()
    for name, node in nodes.items():
        coordinator.joined(name)
        on_the_way.extend((name, message) for message in node.connected())
    while on_the_way and coordinator.state is not RunState.OVER:
        sender, message = on_the_way.popleft()
        for name, request in coordinator.arrived(sender, message):
            on_the_way.extend((name, answer) for answer in nodes[name].receive(request))
        if coordinator.has_work_ahead:
            coordinator.work_ahead()
