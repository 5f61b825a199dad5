"""Rows that come to a node process while a run goes on: files of a folder, one ledger, no budget spent twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.client.node import ArrivalFolder, ArrivalsOfRun, SamplingSource, SeededSampling
from hedgerow.data.binned import SiteData
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import file_ending
from hedgerow.errors import DataError, EnvironmentFault, UsageError
from hedgerow.local.training import train
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.coordinator import RunEvent
from hedgerow.storage import Database
from tests.builders import make_data, make_plan, s_gbdt_plan, take

if TYPE_CHECKING:
    from conftest import Builder, Federation

SITE = "site-2"
N_LATE = 9


def filtered_plan(**privacy: Any) -> Plan:
    """A small plan with a filter, so that late rows have budgets of their own."""
    return s_gbdt_plan("regression", privacy={"n_records": 60, **privacy}, extra_rounds=3, subsampling_ratio=0.5)


def streaming(federation: Federation, folder: Path) -> tuple[SiteData, dict[str, SamplingSource]]:
    """Start all parties; one looks into `folder`, where a file's content says which of the late rows it holds."""
    late = make_data(federation.plan, N_LATE, 11)
    sampling: dict[str, SamplingSource] = {
        site: SeededSampling(5, np.append(np.arange(60)[number::4], 1000 + np.arange(N_LATE)))
        for number, site in enumerate(federation.parties)
    }

    def read(path: Path, _: Plan) -> SiteData:
        first, last = map(int, path.read_text().split())
        return take(late, np.arange(first, last))

    folder.mkdir()
    for site, party in federation.parties.items():
        arrivals = ArrivalFolder(folder, read, file_ending) if site == SITE else None
        party.setup = dataclasses.replace(party.setup, sampling=sampling[site], arrivals=arrivals)
        party.start()
    return late, sampling


def after_releases(federation: Federation, acts: dict[int, Callable[[], None]]) -> None:
    """Do something once so many releases are out."""
    n_told = 0

    def act(event: RunEvent) -> None:
        nonlocal n_told
        if event.kind == "released":
            n_told += 1
            acts.get(n_told, lambda: None)()

    federation.on_event = act


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def restart(federation: Federation) -> None:
    federation.parties[SITE].kill()
    federation.parties[SITE].start()


@pytest.mark.parametrize("dies", [False, True])
def test_files_join_the_run_in_the_exchange_in_which_they_come(federate: Builder, tmp_path: Path, dies: bool) -> None:
    """The model of a stream in one process, to the byte; also of a node that is killed after rows have come, and finds
    again what each of them has spent."""
    plan = filtered_plan()
    federation = federate(4, plan, must_start=False)
    folder = tmp_path / "arrivals"
    late, sampling = streaming(federation, folder)
    acts: dict[int, Callable[[], None]] = {
        2: lambda: put(folder, {"a.csv": "0 4", ".b.csv": "no"}),
        5: lambda: put(folder, {"0.csv": f"4 {N_LATE}", "note.md": "no"}),
    }
    if dies:
        acts |= {4: lambda: restart(federation), 7: lambda: restart(federation)}
    after_releases(federation, acts)
    outcome = federation.run()
    arrivals = {
        2: {SITE: take(late, np.arange(4))}, 5: {SITE: take(late, np.arange(4, N_LATE))},
    }  # fmt: skip
    alone = train(plan, federation.data, noise=SeededNoise(1), sampling=sampling, arrivals=arrivals)
    assert federation.model_bytes(outcome) == alone.to_bytes()
    without = train(plan, federation.data, noise=SeededNoise(1), sampling=sampling)
    assert alone.to_bytes() != without.to_bytes()
    assert outcome.report.epsilon == without.report.epsilon <= plan.privacy.epsilon
    assert not federation.parties[SITE].failures


@pytest.mark.parametrize("fate", ["renamed", "removed"])
def test_a_file_cannot_come_twice_while_the_node_runs(tmp_path: Path, fate: str) -> None:
    """Under another name its rows would be other rows, with a whole budget again, beside what they have spent."""
    plan, first, other = filtered_plan(), tmp_path / "a.csv", tmp_path / "b.csv"
    source = ArrivalFolder(tmp_path, lambda path, _: make_data(plan, int(path.read_text()), 1), file_ending)
    kept = database(tmp_path / "node.db")
    try:
        run = ArrivalsOfRun(source, plan, kept, b"1")
        first.write_text("2")
        assert len(run.due(1, True)) == 1 and run.due(2, True) == []
        if fate != "removed":
            other.write_text("2")
        first.unlink()
        # Where releases are gone through again nothing new is looked for.
        assert run.due(3, False) == []
        for _ in range(2):
            with pytest.raises(DataError) as refused:
                run.due(3, True)
            assert refused.value.code == "arrival-changed"
        assert len(kept.rows("select * from arrivals")) == 1
    finally:
        kept.close()


@pytest.mark.parametrize("rows", ["1,u", "1,u\n1,u", "1,u\n2,v"])
def test_one_row_more_adds_one_row_whatever_other_files_hold(tmp_path: Path, rows: str) -> None:
    """If a file that is alike to another one ended the run or were left out, one row more or less in it would decide
    about all of its rows; the operator is told instead, once, also over a restart.
    """
    plan, told = filtered_plan(), list[str]()
    found = {}
    for name, second in (("alike", rows), ("one more", rows + "\n3,w")):
        folder = tmp_path / name
        folder.mkdir()
        source = ArrivalFolder(
            folder, lambda path, _: make_data(plan, len(path.read_text().splitlines()), 1), file_ending, told.append
        )
        put(folder, {"1.csv": rows, "2.csv": second})
        kept = database(tmp_path / f"{name}.db")
        try:
            taken = ArrivalsOfRun(source, plan, kept, b"1").due(1, True)
            again = ArrivalsOfRun(source, plan, kept, b"1")
            assert [part.n_records for part in again.due(1, False)] == [part.n_records for part in taken]
            assert again.due(2, True) == []
            assert len(kept.rows("select * from arrivals")) == 2
        finally:
            kept.close()
        found[name] = [part.n_records for part in taken]
    n = len(rows.splitlines())
    assert found == {"alike": [n, n], "one more": [n, n + 1]}
    (notice,) = told
    assert "2.csv" in notice and "1.csv" in notice and "only" in notice


def test_the_command_line_tells_of_copies(tmp_path: Path) -> None:
    """A node's operator hears of a copy, whose rows count as any others."""
    from hedgerow.app.rows import open_arrivals

    plan, told = filtered_plan(), list[str]()
    text = "age,income,region,change,y\n2,10,north,0.5,1\n3,500,west,-0.5,4\n"
    put(tmp_path, {"a.csv": text, "b.csv": text})
    source = open_arrivals(str(tmp_path), tell=told.append)
    assert source is not None
    kept = database(tmp_path / "node.db")
    try:
        assert [rows.n_records for rows in ArrivalsOfRun(source, plan, kept, b"1").due(0, True)] == [2, 2]
    finally:
        kept.close()
    assert len(told) == 1


def test_files_without_rows_may_be_alike(tmp_path: Path) -> None:
    """Two days on which nobody came give two files of one content; if that ended the run, it would tell of a third."""
    plan = filtered_plan()
    source = ArrivalFolder(tmp_path, lambda path, _: make_data(plan, 0, 1), file_ending)
    kept = database(tmp_path / "node.db")
    try:
        run = ArrivalsOfRun(source, plan, kept, b"1")
        put(tmp_path, {"a.csv": "header", "b.csv": "header"})
        assert [rows.n_records for rows in run.due(1, True)] == [0, 0]
        assert run.due(2, True) == []
    finally:
        kept.close()


@pytest.mark.parametrize("fate", ["changed", "removed"])
def test_a_file_that_is_not_as_it_was_ends_the_run_for_the_node(federate: Builder, tmp_path: Path, fate: str) -> None:
    """Its rows' budgets could not be found again; the other nodes go on."""
    federation = federate(4, filtered_plan(), must_start=False)
    folder = tmp_path / "arrivals"
    streaming(federation, folder)

    def spoil() -> None:
        (folder / "a.csv").write_text("0 5") if fate == "changed" else (folder / "a.csv").unlink()
        restart(federation)

    after_releases(federation, {2: lambda: put(folder, {"a.csv": "0 4"}), 4: spoil})
    federation.run()
    assert [fault.code for fault in federation.parties[SITE].failures] == ["arrival-changed"]


@pytest.mark.parametrize("kind", ["algorithm", "unit"])
def test_rows_may_not_come_where_no_record_has_an_account(federate: Builder, tmp_path: Path, kind: str) -> None:
    """Another algorithm, or units that may have rows in two files: the node refuses before anything is asked."""
    plan = make_plan() if kind == "algorithm" else filtered_plan(unit="patient")
    federation = federate(4, plan, must_start=False)
    streaming(federation, tmp_path / "arrivals")
    federation.run()
    assert [fault.code for fault in federation.parties[SITE].failures] == ["stream-unsupported"]


def database(path: Path) -> Database:
    """One with the table of arrivals alone."""
    return Database(path, "create table if not exists arrivals (run_id blob, name text, digest blob, round integer)", 1)


def test_each_file_is_taken_once_and_another_run_begins_anew(tmp_path: Path) -> None:
    """In the order of names, at the exchange that finds them; a second run has its own account, a closed one none."""
    plan, folder = filtered_plan(), tmp_path / "in"
    source = ArrivalFolder(folder, lambda path, _: make_data(plan, int(path.read_text()), 1), file_ending)
    with pytest.raises(EnvironmentFault) as missing:
        source.names()
    assert missing.value.code == "arrivals-folder"
    folder.mkdir()
    kept = database(tmp_path / "node.db")
    try:
        run = ArrivalsOfRun(source, plan, kept, b"1")
        (folder / "b.csv").write_text("2")
        (folder / "a.parquet").write_text("1")
        assert run.due(0, False) == []
        assert [rows.n_records for rows in run.due(3, True)] == [1, 2] and run.due(3, True) == []
        again = ArrivalsOfRun(source, plan, kept, b"1")
        assert again.due(2, True) == []
        assert [rows.n_records for rows in again.due(5, False)] == [1, 2]
        assert [rows.n_records for rows in ArrivalsOfRun(source, plan, kept, b"2").due(0, True)] == [1, 2]
        assert ArrivalsOfRun(source, plan, kept, b"3", is_closed=True).due(9, True) == []
    finally:
        kept.close()


def test_a_file_that_is_still_written_is_not_taken(tmp_path: Path) -> None:
    """What was read must be what the digest stands for; nothing is written down of such a file."""
    plan = filtered_plan()

    def grows(path: Path, _: Plan) -> SiteData:
        path.write_text(path.read_text() + "more")
        return make_data(plan, 1, 1)

    kept = database(tmp_path / "node.db")
    try:
        (tmp_path / "a.csv").write_text("1")
        with pytest.raises(DataError) as refused:
            ArrivalsOfRun(ArrivalFolder(tmp_path, grows, file_ending), plan, kept, b"1").due(0, True)
        assert refused.value.code == "arrival-changed" and kept.rows("select * from arrivals") == []
    finally:
        kept.close()


def test_tables_are_read_as_a_sites_own(tmp_path: Path) -> None:
    """The command line's folder: a CSV with the plan's columns becomes rows of the node."""
    from hedgerow.app.rows import open_arrivals

    plan = filtered_plan()
    text = "age,income,region,change,y\n2,10,north,0.5,1\n3,500,west,-0.5,4\n"
    (tmp_path / "late.csv").write_text(text)
    source = open_arrivals(str(tmp_path))
    assert source is not None and open_arrivals(None) is None
    kept = database(tmp_path / "node.db")
    try:
        (rows,) = ArrivalsOfRun(source, plan, kept, b"1").due(0, True)
    finally:
        kept.close()
    expected = read_site_data(tmp_path / "late.csv", plan)[0]
    assert np.array_equal(rows.codes, expected.codes) and np.array_equal(rows.labels, expected.labels)
    with pytest.raises(UsageError):
        source.check(make_plan())


def test_a_folder_lists_what_can_be_read(tmp_path: Path) -> None:
    """The endings are those of any table of a site; what is still being written begins with a point."""
    endings = ("csv", "csv.gz", "parquet", "pq", "PQ")
    for name in (*(f"table.{ending}" for ending in endings), ".table.csv", "table.md"):
        (tmp_path / name).touch()
    listed = ArrivalFolder(tmp_path, lambda path, plan: None, file_ending).names()  # type: ignore[arg-type,return-value]
    assert listed == sorted(f"table.{ending}" for ending in endings)
