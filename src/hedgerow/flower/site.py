"""A site of a Flower federation: its answers to what a SuperNode hands over, and ``hedgerow flower-node``.

The node runs apart from the SuperNode, in a process of its own, behind a socket. It answers what travels in Flower's
messages as a node over gRPC would: the same policy, the same state, the same budget book.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np

from hedgerow.cli.inputs import read_plan, read_policy, signing_key, signing_roster
from hedgerow.cli.node import (
    Load,
    arrivals_of,
    book_file,
    check_table,
    loader,
    model_digest,
    note_book,
    note_leaving,
    with_rows_read,
)
from hedgerow.cli.output import note
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node import warm_up
from hedgerow.client.policy import (
    NodeSetup,
    Policy,
    check_own_plan,
    no_held_out_rows,
    no_training_rows,
    rows_are_counted,
)
from hedgerow.client.state import NodeStore
from hedgerow.data.site_data import SiteData
from hedgerow.data.sources import file_of, is_url
from hedgerow.errors import HedgerowError, PolicyRefusal
from hedgerow.flower import require_version
from hedgerow.flower.files import SiteFile, read_site_file
from hedgerow.flower.link import FlowerNode
from hedgerow.flower.socket import NodeSocket
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SystemNoise
from hedgerow.threads import available_threads, use_threads
from hedgerow.transport.identities import PrivateIdentity, read_private
from hedgerow.transport.roster_file import PinnedRoster, read_roster

LOG_FILE = "flower.log"
_LOG_BYTES = 1 << 20
"""One that is longer is kept as flower.old, in the place of the one before."""


def check(path: Path) -> None:
    """Look at what a site's file names before anyone asks: policy, plan, tables; raises what the owner has to mend."""
    file = read_site_file(path)
    for table in filter(None, (file.data, file.held_out)):
        check_table(table)
    Path(file.state).mkdir(mode=0o700, parents=True, exist_ok=True)
    with use_threads(file.threads or available_threads()) as n_threads:
        keys = read_private(Path(file.identity)), read_roster(Path(file.roster))
        setup = _setup(file, *keys, n_threads, is_check=True)
        check_own_plan(setup)
        with_rows_read(setup)


def leave_run(path: Path) -> None:
    """Leave the run that the state of a site's file holds."""
    file = read_site_file(path)
    folder = Path(file.state)
    store = NodeStore(folder)
    try:
        name = read_private(Path(file.identity)).public.name
        book = BudgetBook(note_book(folder, book_file(file.budget, folder, file.policy, name)))
        try:
            note_leaving(store, book, name)
        finally:
            book.close()
    finally:
        store.close()


def _setup(
    file: SiteFile, identity: PrivateIdentity, roster: PinnedRoster, n_threads: int, *, is_check: bool = False
) -> NodeSetup:
    folder, policy = Path(file.state), read_policy(file.policy)
    arrivals = arrivals_of(file.arrivals or None, strict=policy.is_strict, tell=lambda text: _log(folder, text))
    return NodeSetup(
        identity.public.name, signing_key(identity), signing_roster(roster), policy, os.urandom,
        SystemNoise(os.urandom),
        rows_to_train_on(file, policy, is_check=is_check, max_rows=roster.max_rows_of(identity.public.name)),
        read_plan(file.plan) if file.plan else None, n_threads,
        rows_to_evaluate_on(file, policy, is_check=is_check), frozenset(model_digest(model) for model in file.models),
        arrivals=arrivals,
    )  # fmt: skip


def answer(path: Path, request: bytes) -> bytes:
    """The reply of the site whose file this is to one request; raises as `FlowerNode.answer`, and UsageError."""
    file = read_site_file(path)
    identity, roster = read_private(Path(file.identity)), read_roster(Path(file.roster))
    folder = Path(file.state)
    with use_threads(file.threads or available_threads()) as n_threads:
        setup = _setup(file, identity, roster, n_threads)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        budget = note_book(folder, book_file(file.budget, folder, file.policy, identity.public.name))
        node = FlowerNode(identity, roster, setup, folder, budget, lambda fault: report(folder, fault))
        return node.answer(request)


def rows_to_train_on(file: SiteFile, policy: Policy, *, is_check: bool = False, max_rows: int = 0) -> Load:
    """How the rows to train on are read; without any, `no_training_rows`; `is_check` and `max_rows` as `_kept`."""
    if not file.data:
        return no_training_rows
    return _kept((file.data, file.query), file, policy, "rows", is_check=is_check, max_rows=max_rows)


def rows_to_evaluate_on(file: SiteFile, policy: Policy, *, is_check: bool = False) -> Load:
    """How the rows that are held out are read; without any, `no_held_out_rows`; `is_check` as `_kept`."""
    if not file.held_out:
        return no_held_out_rows
    return _kept((file.held_out, file.held_out_query), file, policy, "held-out", is_check=is_check)


def _kept(
    source: tuple[str, str], file: SiteFile, policy: Policy, name: str, *, is_check: bool = False, max_rows: int = 0
) -> Load:
    """Read a table or a query's result, from the node's own folder where a plan's rows of the table were read before.

    Reading and binning a large table for every message would cost more than answering it. What is kept is a byte or two
    per value, in a file of mode 0600; a table that was changed has another size or time, and is read again. The rows of
    a database may change unseen: they are read every time.

    Args: is_check: whether the owner is looking, and no coordinator has asked. Where rows that do not fit are refused,
        or more rows than the site declares, they are read then and at no other time, for an answer would tell the
        coordinator of them; max_rows: how many to train on it declares, 0 for no number.
    """
    data, query = source
    table = "" if is_url(data) else file_of(data)
    read = loader(data, query or None, strict=policy.is_strict, tell=lambda text: _log(Path(file.state), text))

    def load(plan: Plan) -> SiteData:
        is_counted = rows_are_counted(plan, max_rows)
        why = _why_checked(policy, is_counted)
        if why and not table:
            raise PolicyRefusal(
                "rows-unchecked", why=why, what="The rows of a database may change between two messages."
            )
        if not table or not Path(table).is_file():
            return read(plan)  # It says in its own words that there is no such file.
        status = Path(table).stat()
        # The seed of the trees, which a model's plan has and the owner's may not, changes nothing about the rows.
        counted = f" {max_rows}" if is_counted else ""
        kind = f"{plan.with_joint_structure().digest} {policy.rows_that_do_not_fit}{counted}"
        stamp = f"{kind} {data} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
        kept = Path(file.state) / f"{name}-{sha256(stamp.encode()).hexdigest()[:32]}.npz"
        if kept.is_file():
            with np.load(kept, allow_pickle=False) as arrays:
                return SiteData(arrays["codes"], arrays["labels"])
        if why and not is_check:
            raise PolicyRefusal("rows-unchecked", why=why, what="Nobody has read the table as it is now, by this plan.")
        rows = read(plan)
        if is_counted and rows.n_records > max_rows:
            return rows  # The one who checks it says so. What is kept has been found to be right.
        for old in kept.parent.glob(f"{name}-*.npz"):
            old.unlink()
        part = kept.with_suffix(".part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            np.savez(stream, codes=rows.codes, labels=rows.labels)
        part.replace(kept)
        return rows

    return load


def _why_checked(policy: Policy, is_counted: bool) -> str:
    """Why rows have to be checked before a coordinator asks; empty where they need not be."""
    if policy.is_strict:
        return 'The policy says rows_that_do_not_fit = "refuse"'
    return "The plan has the accountant pure, and the roster says how many rows this site has" if is_counted else ""


def report(folder: Path, fault: HedgerowError) -> None:
    """Tell the owner of a failure: in full in the node's own folder, by its code word where a SuperNode logs."""
    log = _log(folder, f"{fault} ({fault.code})")
    print(f"hedgerow: {fault.code}; the rest stands in {log}", file=sys.stderr, flush=True)


def _log(folder: Path, text: str) -> Path:
    """Write a line for the owner, and no one else, into the node's own folder; returns the file."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / LOG_FILE
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        # A coordinator that is refused again and again must not fill the disk with it.
        log.replace(log.with_suffix(".old"))
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as stream:
        stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    return log


def serve(arguments: argparse.Namespace) -> None:
    """Answer what a SuperNode hands over, until interrupted."""
    path = Path(arguments.site)
    file = read_site_file(path)
    check(path)
    if arguments.leave:
        leave_run(path)
    warm_up(None, file.threads or 1)

    def reply(version: str, request: bytes) -> bytes:
        try:
            require_version(version, "The coordinator")
            return answer(path, request)
        except HedgerowError as fault:
            note(f"{fault} ({fault.code})")
            raise

    listener = NodeSocket(Path(arguments.socket))
    try:
        note(f"Listening at {arguments.socket}.")
        while True:
            listener.take(reply)
    finally:
        listener.close()
