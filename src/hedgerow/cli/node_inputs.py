"""What a node is given, however it is reached: tables or databases, and the models that it may evaluate."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hedgerow.cli.output import note
from hedgerow.client.arrivals import ArrivalFolder
from hedgerow.client.budget import BudgetBook
from hedgerow.client.node_run import NodeSetup, no_held_out_rows, no_training_rows, require_declared_rows
from hedgerow.client.session import leave
from hedgerow.client.store import NodeStore
from hedgerow.client.warm_up import read_early
from hedgerow.data.site_data import SiteData, read_site_data, site_data_from_records
from hedgerow.data.sources import column_names, read_sql_records
from hedgerow.data.units import ContributionReport, RowsLeftOut
from hedgerow.errors import UsageError
from hedgerow.methods.tasks import digest_of_model
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan

Tell = Callable[[str], object]
"""Where the owner of the site, and nobody else, is told how many rows were left out."""


def loader(
    data: str, query: str | None, *, strict: bool = False, tell: Tell | None = None
) -> Callable[[Plan], SiteData]:
    """How the site's rows are read once there is a plan.

    Args:
        strict: refuse a row that does not fit, and a table without rows; else such rows are left out.
        tell: is given a sentence when rows are left out.

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

    def load(plan: Plan) -> SiteData:
        if query is None:
            return _told(read_site_data(data, plan, strict=strict), data, tell)
        left_out: RowsLeftOut | None = None if strict else {}
        records = read_sql_records(data, query, plan, left_out=left_out)
        return _told(site_data_from_records(records, plan, left_out=left_out), "The query's result", tell)

    return load


def _told(read: tuple[SiteData, ContributionReport], source: str, tell: Tell | None) -> SiteData:
    rows, report = read
    if tell is not None and (report.unfit or not rows.n_records):
        tell(f"{source}: {left_out_text(report)} (private: for this site only)")
    return rows


def left_out_text(report: ContributionReport) -> str:
    """How many rows were left out, and why, for the site's owner only."""
    causes = [f"{n_rows:,} {code}" for code, n_rows in sorted(report.unfit.items())]
    if report.n_dropped:
        causes.append(f"{report.n_dropped:,} beyond privacy.max_rows_per_unit")
    n_left_out = sum(report.unfit.values()) + report.n_dropped
    reason = f" ({', '.join(causes)})" if causes else ""
    return f"{n_left_out:,} rows left out{reason}, {report.n_rows - report.n_dropped:,} rows used."


def check_table(data: str) -> None:
    """Look at a table before there is a plan: it is there, and its header can be read. Raises DataError.

    A database is asked when there is a plan.
    """
    if "://" not in data:
        column_names(data)


def with_rows_read(setup: NodeSetup) -> NodeSetup:
    """The same, with the tables of its plan read already; raises DataError for one that does not fit, or is too large.

    Without a plan they are read when the coordinator proposes one.
    """
    load, load_held_out = setup.load, setup.load_held_out
    if load is not no_training_rows:
        load = read_early(load, setup.plan)
        if setup.plan is not None:
            require_declared_rows(setup, load(setup.plan))
    if load_held_out is not no_held_out_rows:
        load_held_out = read_early(load_held_out, setup.plan)
        if setup.plan is not None:
            require_declared_rows(setup, load_held_out(setup.plan))
    return replace(setup, load=load, load_held_out=load_held_out)


def arrivals_of(folder: str | None, *, strict: bool = False, tell: Tell | None = None) -> ArrivalFolder | None:
    """The folder of tables that come while a run goes on; None for none; EnvironmentFault when it is not there."""
    if folder is None:
        return None

    def read(path: Path, plan: Plan) -> SiteData:
        return _told(read_site_data(path, plan, strict=strict), path.name, tell)

    source = ArrivalFolder(Path(folder), read, strict, tell)
    source.names()
    return source


def note_leaving(store: NodeStore, book: BudgetBook, site: str) -> None:
    """Leave the run that the state folder of a site's node holds, and say so."""
    left = leave(store, book, site)
    note("The state holds no run to leave." if left is None else f"The run {left.hex()[:12]} is left.")


def model_digest(path: str) -> bytes:
    """32 bytes that tell the model of a file apart, as an evaluation's task does; raises ModelError."""
    return digest_of_model(Model.load(path).ensemble)


def note_reserved(store: NodeStore, book: BudgetBook, site: str) -> None:
    """Say which runs stay reserved when a site's node ends, and how to close them."""
    book.serve(site, store.folder)
    for run_id in book.reserved():
        short, folder = run_id.hex()[:12], shlex.quote(str(store.folder))
        note(
            f"{site}: the run {short} may go on, so its whole cost stays reserved. Start the node again to go on; "
            f"`hedgerow ledger {folder} --close {short}` ends it here, charged for what has left."
        )
