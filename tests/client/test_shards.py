"""A node whose rows are in parts: the vector of one node to the last bit, and each person's rows in one part."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client.node import RowsOrCells, make_node, show_nothing
from hedgerow.client.setup import Answers, select_rows
from hedgerow.client.shards import Shard, ShardedNode, Shards, WorkerLost
from hedgerow.data.binned import SiteData
from hedgerow.data.hashing import Part, hash_rows
from hedgerow.data.raw_cells import read_raw_site
from hedgerow.data.site_data import read_part, read_site_data
from hedgerow.errors import EnvironmentFault, RemoteProtocolError
from hedgerow.local.training import train
from hedgerow.methods.registry import program_for, resolve
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, ensemble_bytes
from hedgerow.models.model import Model
from hedgerow.plan.plan import Feature, Plan
from hedgerow.privacy.noise import SeededNoise
from hedgerow.server.release import UNCOUNTED, PlainAggregation, run_program
from hedgerow.survey.requests import OpenTable
from tests.builders import LABELS, bare_plan, coded, make_data, make_plan, numbers, queries_of
from tests.runtime.test_survey import curves, statistics, write_tables

PARTS = (1, 2, 7)


class HereWorker:
    """A worker in this process; what goes in and out is pickled, and calls of some numbers find it dead."""

    def __init__(self, deaths: set[int], calls: itertools.count[int]) -> None:
        self._shard, self._deaths, self._calls, self._is_lost = Shard(), deaths, calls, False

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        content = pickle.dumps(arguments)

        def wait() -> Any:
            self._is_lost |= next(self._calls) in self._deaths
            if self._is_lost:
                raise WorkerLost
            return pickle.loads(pickle.dumps(getattr(self._shard, method)(*pickle.loads(content))))

        return wait


def deal(data: SiteData, offered: object, part: Part) -> SiteData:
    """Rows in turn."""
    return data.only(np.arange(part.number, data.n_records, part.n_parts))


def shards_of(
    data: SiteData, plan: Plan, n_parts: int, deaths: set[int] | None = None, calls: itertools.count[int] | None = None
) -> Shards:
    start = partial(HereWorker, deaths or set(), calls or itertools.count())
    return Shards(start, n_parts, partial(deal, data), plan)


def train_sharded(plan: Plan, sites: dict[str, Shards]) -> Model:
    noise, method = SeededNoise(3), resolve(plan)
    nodes = [ShardedNode(name, rows, TrainingTask(plan), noise) for name, rows in sites.items()]
    found = run_program(plan, program_for(plan, method), PlainAggregation(nodes), noise, UNCOUNTED)
    return Model(found.plan, found.ensemble, found.ledger, found.report)


# Division -------------------------------------------------------------------------------------------------------------


def write(folder: Path, kind: str, units: list[Any]) -> str:
    """A table by its kind, and where it is; in the folder of two files, people are in both."""
    random = np.random.default_rng(len(units))
    n = len(units)
    rows = pa.table({"x0": random.random(n), "x1": random.random(n), "y": ["no", "yes"] * (n // 2), "person": units})
    if kind == "csv":
        arrow_csv.write_csv(rows, folder / "t.csv")
        return str(folder / "t.csv")
    if kind == "parquet":
        (folder / "t").mkdir()
        for number in range(2):
            own = rows.take(list(range(number, n, 2)))
            parquet.write_table(own, folder / "t" / f"{number}.parquet", row_group_size=3)
        return str(folder / "t")
    import duckdb

    with duckdb.connect(str(folder / "t.db")) as connection:
        connection.sql("create table t as select row_number() over () as place, * from rows")
    return f"duckdb:///{folder / 't.db'}#with t2 as (select * from t) select * from t2 order by place; "


def rows_in(held: RowsOrCells) -> Counter[int]:
    return Counter(hash_rows(held.list_contents(), held.n_records).tolist())


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(["csv", "parquet", "duckdb"]), n=st.integers(1, 15), n_parts=st.sampled_from(PARTS),
    unit=st.sampled_from(["record", "whole", "text"]), most=st.integers(1, 3),
)  # fmt: skip
def test_each_row_is_in_one_part_and_a_persons_rows_are_together(
    tmp_path_factory: pytest.TempPathFactory, kind: str, n: int, n_parts: int, unit: str, most: int
) -> None:
    """Whatever holds the table: the parts' rows are the table's, also after each person's were bounded part by part;
    for training as for a survey.
    """
    whole = [(i * 7) % 5 - 2 for i in range(2 * n)]
    # One person, spelt in two ways.
    spelt = [f" {number}.0" if i % 2 and kind == "csv" else str(number) for i, number in enumerate(whole)]
    place = write(tmp_path_factory.mktemp("parts"), kind, whole if unit != "text" else spelt)
    privacy = {"unit": "record"} if unit == "record" else {"unit": "person", "max_rows_per_unit": most}
    plan = bare_plan(LABELS["binary"], numbers(2), privacy=privacy)
    parts = [Part(number, n_parts) for number in range(n_parts)]
    expected, _ = read_site_data(place, plan)
    assert sum((rows_in(read_part(place, plan, part)) for part in parts), Counter()) == rows_in(expected)
    columns = [Feature(name=name, type="") for name in ("x0", "x1", "y")]
    asked = OpenTable.of(columns, "y", {"epsilon": 1.0, "delta": 1e-6, **privacy})
    read = [read_raw_site(place, asked, part) for part in parts]
    assert sum(map(rows_in, read), Counter()) == rows_in(read_raw_site(place, asked))


# One node -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["binary", "regression", "survival"])
@pytest.mark.parametrize("noise", ["server", "local"])
def test_parts_make_the_model_of_one_node(label: str, noise: str) -> None:
    """Sums are integers, and a site's own noise is drawn once: not a byte depends on the parts, or on lost workers."""
    plan = make_plan(label, privacy={"noise": noise}, secure_aggregation=False, structure_seed=5)
    data = {name: make_data(plan, 60, seed) for seed, name in enumerate(("north", "south"))}
    expected = train(plan, data, noise=SeededNoise(3)).to_bytes()
    for n_parts, deaths in ((1, set()), (2, {1, 4, 9, 15}), (7, {0, 20, 21, 33, 60})):
        calls = itertools.count()
        sites = {name: shards_of(rows, plan, n_parts, deaths, calls) for name, rows in data.items()}
        assert train_sharded(plan, sites).to_bytes() == expected


def play(task: Task, node: Answers) -> list[list[int]]:
    """The node's answers to what a task asks, each of which is what is released."""
    found, program = list[list[int]](), task.program()
    try:
        query = next(program)
        while True:
            answer = node.answer(query)
            found.append(answer.tolist())
            query = program.send(answer)
    except StopIteration:
        return found


@pytest.mark.parametrize("noise", ["server", "local"])
def test_parts_answer_an_evaluation_as_one_node(noise: str) -> None:
    """Groups and single sites too: the site's own noise is drawn once, and on all its rows' sums."""
    plan = make_plan(privacy={"noise": noise}, secure_aggregation=False, structure_seed=5)
    model, data = train(plan, {"north": make_data(plan, 60, 0)}, noise=SeededNoise(3)), make_data(plan, 50, 1)
    by, sites = ("region", "site"), ("north", "south")
    groups = {"by": by[:1]} if noise == "local" else {"by": by, "sites": sites}
    task = EvaluationTask(model.plan, ensemble_bytes(model.ensemble), 1.0, 1e-6, 4, **groups)
    for shows in (show_nothing, lambda query: True):
        whole = make_node("north", data, task, noise=SeededNoise(3), shows=shows)
        expected = play(task, whole)
        for n_parts, deaths in ((1, set[int]()), (2, {5, 8}), (7, {20, 30})):
            shards = shards_of(data, plan, n_parts, deaths)
            assert play(task, ShardedNode("north", shards, task, SeededNoise(3), shows=shows)) == expected


@pytest.mark.parametrize(
    ("asked", "most"),
    [(statistics(unit="patient"), 40), (statistics(), 0), (curves(), 40)],
    ids=["unit", "", "km"],
)
def test_parts_answer_a_survey_as_one_node(asked: OpenTable, most: int, tmp_path: Path) -> None:
    """Raw cells, of all rows or of as many as the site declares: each part counts its own."""
    table, task = write_tables(tmp_path, ["north"])["north"], SurveyTask(asked)
    rows = read_raw_site(table, asked)
    used = rows.only(select_rows(rows.list_contents(), rows.n_records, most)) if most else rows
    expected = play(task, make_node("north", used, task))
    for n_parts, deaths in ((1, set[int]()), (2, {5, 8}), (7, {20, 30})):
        start = partial(HereWorker, deaths, itertools.count())
        shards = Shards(start, n_parts, partial(read_raw_site, table), asked)
        assert shards.n_records == rows.n_records
        if most:
            shards.limit(most)
        assert play(task, ShardedNode("north", shards, task, SeededNoise(0))) == expected


def test_rows_serve_one_run_after_the_other() -> None:
    """Scores are of a run: a second one over the same parts begins without any."""
    plan = make_plan(secure_aggregation=False, structure_seed=5)
    sites = {"north": shards_of(make_data(plan, 30, 0), plan, 2)}
    assert train_sharded(plan, sites).to_bytes() == train_sharded(plan, sites).to_bytes()


@settings(max_examples=5, deadline=None)
@given(n=st.integers(2, 40), most=st.integers(1, 39), n_parts=st.sampled_from(PARTS), repeats=st.integers(1, 4))
def test_a_declared_number_of_rows_holds_for_all_parts_together(n: int, most: int, n_parts: int, repeats: int) -> None:
    """The rows that one node would use, copies of a row as well, also where a worker is lost and comes back."""
    plan = make_plan(structure_seed=5)
    data = make_data(plan, n, 0).only(np.repeat(np.arange(n), repeats))
    most = min(most, data.n_records - 1)
    expected = train(
        plan, {"north": data.only(select_rows(data.list_contents(), data.n_records, most))}, noise=SeededNoise(3)
    )
    shards = shards_of(data, plan, n_parts, {90 * n_parts})
    shards.limit(most)
    assert shards.n_used == most
    assert train_sharded(plan, {"north": shards}).to_bytes() == expected.to_bytes()


# Faults ---------------------------------------------------------------------------------------------------------------


NOW: dict[str, SiteData] = {}
"""The table as it is now: workers read it whenever they are started."""


def read_now(offered: object, part: Part) -> SiteData:
    """A part of the table as it is now, by contents."""
    rows = NOW["table"]
    return rows.only(part.holds_rows(rows.list_contents(), rows.n_records))


class ChangingWorker(HereWorker):
    """Dies as `HereWorker` does; the table becomes another one then."""

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        wait = super().ask(method, *arguments)

        def ask() -> Any:
            try:
                return wait()
            except WorkerLost:
                NOW["table"] = NOW["later"]
                raise

        return ask


@settings(max_examples=12, deadline=None)
@given(
    death=st.integers(0, 60), second=st.integers(0, 60), n_parts=st.sampled_from(PARTS), more=st.integers(-3, 3),
    most=st.sampled_from([0, 18, 40]),
)  # fmt: skip
def test_a_worker_with_other_rows_changes_no_more_than_the_rows(
    death: int, second: int, n_parts: int, more: int, most: int
) -> None:
    """Whether one row has changed cannot be seen from whether the node goes on: at whatever call a worker is lost, each
    answer is that of an undivided node over one state of the whole table, the earlier one or the later."""
    plan = make_plan(secure_aggregation=False, structure_seed=5, batch_size=1)
    task, later = TrainingTask(plan), make_data(plan, 23, 2)
    before = later.only(np.arange(20))
    NOW.update(table=before, later=later.only(np.arange(20 + more)))

    def undivided(rows: SiteData) -> Any:
        used = min(rows.n_records, most) if most else rows.n_records
        return make_node("north", rows.only(select_rows(rows.list_contents(), rows.n_records, used)), task)

    said: list[str] = []
    start = partial(ChangingWorker, {death, death + 1 + second}, itertools.count())
    shards = Shards(start, n_parts, read_now, plan)
    shards.tell = said.append
    shards.limit(most)
    divided, asked = ShardedNode("north", shards, task, SeededNoise(3)), []

    class Both:
        site = "north"

        def answer(self, query: Any) -> Any:
            found = divided.answer(query)
            rows = next(
                rows for rows in (NOW["later"], before) if (rows.n_records == shards.n_records and rows is NOW["table"])
                or (rows is before and shards.n_records == before.n_records)
            )  # fmt: skip
            oracle = undivided(rows)
            for earlier in asked:
                oracle.finish(earlier)
            asked.append(query)
            assert np.array_equal(found, oracle.answer(query))
            return found

    found = run_program(plan, program_for(plan, resolve(plan)), PlainAggregation([Both()]), SeededNoise(3), UNCOUNTED)
    assert len(found.ledger) == len(asked)
    assert bool(said) == (shards.n_records != before.n_records)


def test_accounts_of_records_end_with_their_worker_whatever_its_rows_are() -> None:
    """What a record has spent follows from rows that stay; a node that stopped only where they changed would tell."""
    plan = make_plan(model={"algorithm": "s-gbdt"}, secure_aggregation=False, structure_seed=5)
    for later in (make_data(plan, 20, 0), make_data(plan, 19, 0)):
        NOW.update(table=make_data(plan, 20, 0), later=later)
        shards = Shards(partial(ChangingWorker, {7}, itertools.count()), 2, read_now, plan)
        with pytest.raises(EnvironmentFault, check=coded("shard-lost")):
            train_sharded(plan, {"north": shards})


def test_a_worker_that_is_always_lost_is_given_up() -> None:
    """A part that is too large for its machine would be read again for ever."""
    plan = make_plan()
    with pytest.raises(EnvironmentFault, check=coded("shard-lost")):
        shards_of(make_data(plan, 20, 0), plan, 2, set(range(100)))


def test_what_a_part_refuses_the_node_refuses() -> None:
    """A query out of step is the coordinator's fault, and no worker is started again for it."""
    plan = make_plan()
    node = ShardedNode("north", shards_of(make_data(plan, 20, 0), plan, 2), TrainingTask(plan), SeededNoise(0))
    query = queries_of(TrainingTask(plan.with_structure_seed(5)))[0][0]
    with pytest.raises(RemoteProtocolError, check=coded("ensemble-out-of-step")):
        node.answer(replace(query, ensemble_size=3))


# Ray ------------------------------------------------------------------------------------------------------------------

CHECK = Path(__file__).parents[2] / "deploy" / "shards-check"


@pytest.mark.slow
@pytest.mark.long
def test_real_actors_over_a_network_make_the_local_engines_model() -> None:
    """As a site's owner types it: 1, 2 and 7 parts of a folder of Parquet, and an actor that is killed in the run."""
    pytest.importorskip("ray")
    hedgerow = Path(sys.executable).with_name("hedgerow")
    done = subprocess.run([CHECK], env={**os.environ, "HEDGEROW": str(hedgerow)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
