# SPDX-License-Identifier: Apache-2.0
"""How a site's node reads the tables that its owner gives it, and what it tells the owner of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hedgerow.app.fit import Seen, Tell, log_fit
from hedgerow.app.output import note
from hedgerow.client.node import ArrivalFolder
from hedgerow.client.setup import (
    LoadRows,
    NodeSetup,
    no_held_out_rows,
    no_training_rows,
    read_early,
    tell_about_more_rows,
)
from hedgerow.client.shards import Shards
from hedgerow.data.adapters import PLAIN, Adapter
from hedgerow.data.binned import SiteData
from hedgerow.data.cells import describe_cells
from hedgerow.data.mapped import ExternalMemory
from hedgerow.data.omop import find_dialect
from hedgerow.data.raw_cells import read_raw_site
from hedgerow.data.site_data import find_kept, read_bounded, read_site_data
from hedgerow.data.sources import Location, adapt, column_names, file_ending, file_path, is_url, open_table, stamp_files
from hedgerow.data.units import MAX_LEFT_OUT, ContributionReport, RowCount
from hedgerow.errors import mark_private
from hedgerow.plan.plan import Plan
from hedgerow.survey.queries import RawSite
from hedgerow.survey.requests import OpenTable


def make_loader(
    data: str,
    *,
    tell: Tell | None = None,
    own: Adapter = PLAIN,
    memory: Path | None = None,
    name: str = "",
    holds: bool = False,
) -> Callable[[Plan], SiteData]:
    """Return a function that reads the site's rows once there is a plan.

    Args:
        tell: is given a sentence when rows are left out.
        own: how the site writes its table.
        memory, name, holds: the folder of external memory (`ExternalMemory`), their name there, and whether what was
            read holds; None without.

    Raises:
        UsageError: a URL without a query that no plan's [omop] may have.
    """
    # Only URLs are checked now: one without a query is refused if no plan can have a query for such a database.
    source = data
    if is_url(data):
        source = "The query's result" if find_dialect(data) else open_table(data).source

    def load(plan: Plan) -> SiteData:
        tables, arrays = {name: adapt(data, own)}, None
        if memory is not None:
            # Ignore the seed of the trees, which does not affect the rows: a model's plan has one, the owner's may not.
            arrays = ExternalMemory.open(memory, plan.with_joint_structure(), tables, holds=holds)
            if found := find_kept(arrays, plan):
                return found[name][0]
        return _report_reading(read_bounded(tables, plan, memory=arrays)[name], source, tell, plan)

    return load


def make_raw_loader(data: str | None, own: Adapter = PLAIN) -> Callable[[OpenTable], RawSite]:
    """Return a function that reads the raw cells of the training rows once a survey asks for them."""
    if data is None:
        return no_training_rows
    name = "The query's result" if is_url(data) else Path(file_path(data)).name

    def tell_owner(rows: RowCount, odd: str) -> None:
        said = mark_private(f"{name}, for a survey: {' '.join(filter(None, (rows.text(), odd)))}")
        note(said, level="WARNING" if rows.share_left_out > MAX_LEFT_OUT else "INFO")

    return lambda asked: read_raw_site(adapt(data, own), asked, tell=tell_owner)


def _report_reading(read: tuple[SiteData, ContributionReport], source: str, tell: Tell | None, plan: Plan) -> SiteData:
    rows, report = read
    odd = describe_cells(report.cells, plan)
    if tell is not None and (report.rows.left_out or odd or not rows.n_records):
        text = " ".join(filter(None, (report.rows.text(), odd)))
        said = mark_private(f"{source}: {text}")
        tell(said, level="WARNING") if report.rows.share_left_out > MAX_LEFT_OUT else tell(said)
    return rows


def check_table(data: str, own: Adapter = PLAIN) -> None:
    """Look at a table before there is a plan: it is there, and its header can be read. Raises DataError.

    A database is asked when there is a plan.
    """
    if not is_url(data):
        column_names(adapt(data, own))


def read_rows_ahead(
    setup: NodeSetup, tables: Sequence[Location] = (), tell: Tell = note, seen: Seen | None = None
) -> NodeSetup:
    """Return the setup with its tables checked and read now, before anyone is dialled.

    Without a plan they are read when the coordinator proposes one.

    Args:
        tables: those that `setup` reads.
        tell: is given what the owner should know of them.
        seen: is given all that was found of each.

    Raises:
        DataError: a table does not fit, or is too large.
    """
    load, load_held_out = setup.load, setup.load_held_out
    if setup.plan is not None:
        for table in tables:
            log_fit(table, setup.plan, tell, seen)
    if load is not no_training_rows:
        load = _read_now(load, setup.plan, tables, tell)
        if setup.plan is not None:
            tell_about_more_rows(setup, load(setup.plan).n_records)
    if load_held_out is not no_held_out_rows:
        load_held_out = _read_now(load_held_out, setup.plan, tables, tell)
        if setup.plan is not None:
            tell_about_more_rows(setup, load_held_out(setup.plan).n_records)
    return replace(setup, load=load, load_held_out=load_held_out)


def _read_now(load: LoadRows, plan: Plan | None, tables: Sequence[Location], tell: Tell) -> LoadRows:
    """Read rows as `read_early`, and tell the owner if a run takes rows of a table changed since."""
    before = [*map(stamp_files, tables)]
    early = read_early(load, plan)

    def give(offered: Plan) -> SiteData | Shards:
        if plan is not None and [*map(stamp_files, tables)] != before:
            said = "A table was changed since it was read. The run takes the rows as they were then; to have it take"
            tell(mark_private(f"{said} the new ones, start the node again before a run begins"))
        return early(offered)

    return give


def open_arrivals(folder: str | None, *, tell: Tell | None = None, own: Adapter = PLAIN) -> ArrivalFolder | None:
    """Open the folder of tables that come during a run; None for none. EnvironmentFault if it is missing."""
    if folder is None:
        return None

    def read(path: Path, plan: Plan) -> SiteData:
        return _report_reading(read_site_data(adapt(path, own), plan), path.name, tell, plan)

    source = ArrivalFolder(Path(folder), read, file_ending, tell)
    source.names()
    return source
