"""External memory: codes in mapped files are those in memory, of one plan and table, and for their owner alone."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.rows import make_loader
from hedgerow.client.node import Node
from hedgerow.data.binned import SiteData
from hedgerow.data.mapped import ExternalMemory, Stretches
from hedgerow.data.site_data import find_kept, read_bounded, read_site_data
from hedgerow.errors import DataError, EnvironmentFault
from hedgerow.methods.registry import resolve
from hedgerow.plan.plan import Plan
from tests.builders import LABELS, bare_plan, coded, numbers

ALL_ROWS = 40


@pytest.fixture
def few_open_files() -> Iterator[None]:
    """256 open files at most, which is what many systems allow a process."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, allowed[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed)


def number_plan(**privacy: Any) -> Plan:
    return bare_plan(LABELS["binary"], numbers(3), privacy=privacy)


def write_table(path: Path, n: int = ALL_ROWS, n_files: int = 0, n_unfit: int = 0) -> Path:
    """Rows of n people in fours, in one file or in a folder of some; the first few without a label."""
    random = np.random.default_rng(n)
    columns: dict[str, Any] = {f"x{i}": random.uniform(-0.1, 1.1, n) for i in range(3)}
    labels = [None] * n_unfit + [("no", "yes")[i % 2] for i in range(n - n_unfit)]
    table = pa.table({**columns, "y": pa.array(labels, pa.string()), "person": [f"p{i // 4}" for i in range(n)]})
    if not n_files:
        parquet.write_table(table, path, row_group_size=7)
        return path
    path.mkdir()
    for number, part in enumerate(np.array_split(np.arange(n), n_files)):
        parquet.write_table(table.take(part), path / f"part-{number:02}.parquet")
    (path / "_SUCCESS").touch()
    return path


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


@pytest.mark.usefixtures("few_open_files")
def test_a_wide_table_needs_no_file_for_each_column(tmp_path: Path) -> None:
    """Columns wait until it is known how many rows there are: all of them in one file, whatever their number."""
    random = np.random.default_rng(0)
    expected = random.integers(0, 9, (2000, 7), dtype=np.uint8)
    with Stretches(2000, np.uint8, tmp_path) as stretches:
        for first, last in ((0, 3), (3, 3), (3, 7)):
            stretches.add(expected[:, first:last])
        assert np.array_equal(stretches.join("codes.npy"), expected)


def read(folder: Path, table: Path, plan: Plan, holds: bool = False) -> tuple[SiteData, bool]:
    """The rows, and whether they were kept from before."""
    memory = ExternalMemory.open(folder, plan, {"rows": table}, holds=holds)
    found = find_kept(memory, plan)
    return (found or read_bounded({"rows": table}, plan, memory=memory))["rows"][0], found is not None


@settings(max_examples=10, deadline=None)
@given(
    n=st.integers(4, 50), n_files=st.integers(0, 3), n_unfit=st.integers(0, 4), most=st.sampled_from([None, 1, 3, 4])
)
def test_mapped_codes_are_those_in_memory(
    tmp_path_factory: pytest.TempPathFactory, n: int, n_files: int, n_unfit: int, most: int | None
) -> None:
    """Read anew or kept, of a file or of a folder, with people's rows bounded or not: the rows of the way in memory."""
    folder = tmp_path_factory.mktemp("mapped")
    plan = number_plan(**({} if most is None else {"unit": "person", "max_rows_per_unit": most}))
    table = write_table(folder / "table.parquet", n, n_files, n_unfit)
    whole = write_table(folder / "whole.parquet", n, 0, n_unfit)
    expected, report = read_site_data(whole, plan)
    for _ in range(2):
        memory = ExternalMemory.open(folder / "codes", plan, {"rows": table})
        data, told = (find_kept(memory, plan) or read_bounded({"rows": table}, plan, memory=memory))["rows"]
        assert told == report
        assert data.digest() == expected.digest()
        assert all(map(is_mapped, (data.codes, data.labels))) == bool(data.n_records)
    assert find_kept(memory, plan) is not None


def edit(table: Path) -> None:
    write_table(table, ALL_ROWS + 1)


def touch(table: Path) -> None:
    os.utime(table, ns=(1, 1))


def take_out(table: Path) -> None:
    """A row becomes another's, in place, and the file's time is set back, as copies do that keep times."""
    before, content = table.stat(), table.read_bytes()
    assert b"p9" in content
    with table.open("r+b") as file:
        file.write(content.replace(b"p9", b"p8"))
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [edit, touch, take_out])
def test_a_changed_table_is_read_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Codes belong to a table as it was: another size or time, or one set back, and it is read again, and they go."""
    table, plan = write_table(tmp_path / "table.parquet"), number_plan()
    assert [read(tmp_path / "codes", table, plan)[1] for _ in range(2)] == [False, True]
    change(table)
    data, was_kept = read(tmp_path / "codes", table, plan)
    assert (was_kept, data.n_records) == (False, read_site_data(table, plan)[0].n_records)
    assert len(list((tmp_path / "codes").iterdir())) == 1


def lose_table(table: Path) -> None:
    table.unlink()


@pytest.mark.parametrize("change", [edit, touch, lose_table])
def test_what_holds_does_not_follow_the_table(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """A node that is made anew for each message of a run has the rows of its beginning, whatever becomes of them."""
    table, plan = write_table(tmp_path / "table.parquet"), number_plan()
    expected, _ = read(tmp_path / "codes", table, plan, holds=True)
    change(table)
    data, was_kept = read(tmp_path / "codes", table, plan, holds=True)
    assert (was_kept, data.digest()) == (True, expected.digest())


def test_codes_belong_to_a_plan_and_to_what_the_site_says(tmp_path: Path) -> None:
    """Other edges give other codes, and other rows may fit by another rule of the site's."""
    table, folder = write_table(tmp_path / "table.parquet"), tmp_path / "codes"
    other = bare_plan(LABELS["binary"], numbers(3, high=2.0))
    for plan in (number_plan(), other):
        assert [read(folder, table, plan)[1] for _ in range(2)] == [False, True]


def cut(folder: Path) -> None:
    with open(folder / "codes.npy", "rb+") as file:
        file.truncate(140)


def lose(folder: Path) -> None:
    (folder / "report.json").unlink()


def miss(folder: Path) -> None:
    (folder / "labels.npy").unlink()


def misread(folder: Path) -> None:
    report = folder / "report.json"
    report.write_bytes(report.read_bytes().replace(b'"n_rows"', b'"m_rows"', 1))


def reshape(folder: Path) -> None:
    codes = np.load(folder / "codes.npy")
    np.save(folder / "codes.npy", codes.reshape(codes.shape[::-1]))


def garble(folder: Path) -> None:
    with open(folder / "codes.npy", "rb+") as file:
        file.seek(12)
        file.write(b"{('")


def flip_label(folder: Path) -> None:
    np.load(folder / "labels.npy", mmap_mode="r+")[0, 0] = -5


def flip_code(folder: Path) -> None:
    np.load(folder / "codes.npy", mmap_mode="r+")[1, 2] = 255


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("damage", [cut, lose, miss, misread, reshape, garble, flip_label, flip_code])
def test_what_is_not_whole_is_made_again(tmp_path: Path, damage: Callable[[Path], None], holds: bool) -> None:
    """A file that was cut off would be read as zeros, another head as other rows, or not at all, and a label or code
    that the plan does not have would end the command as a fault of ours: it is made again."""
    table, plan = write_table(tmp_path / "table.parquet"), number_plan()
    read(tmp_path / "codes", table, plan, holds=holds)
    damage(next((tmp_path / "codes").iterdir()))
    data, was_kept = read(tmp_path / "codes", table, plan, holds=holds)
    assert (was_kept, data.digest()) == (False, read_site_data(table, plan)[0].digest())


def test_a_table_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    """Its codes are of no table that there ever was, and no name says so."""
    table, plan = write_table(tmp_path / "table.parquet"), number_plan()
    memory = ExternalMemory.open(tmp_path / "codes", plan, {"rows": table})
    touch(table)
    assert read_bounded({"rows": table}, plan, memory=memory)["rows"][0].n_records == ALL_ROWS
    assert not list((tmp_path / "codes").iterdir())


def test_only_the_owner_can_read_codes(tmp_path: Path) -> None:
    """They are the rows as the plan has them; scores and codes by other edges have no name at all."""
    table, plan, folder = write_table(tmp_path / "table.parquet"), number_plan(), tmp_path / "codes"
    before = os.umask(0)
    try:
        data, _ = read(folder, table, plan)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    files = set(folder.rglob("*"))
    node = Node("north", data, plan, resolve(plan))
    assert is_mapped(node.held.records.scores) and set(folder.rglob("*")) == files


@pytest.mark.parametrize("mode", [0o750, 0o707, 0o777])
def test_codes_do_not_go_where_others_come(tmp_path: Path, mode: int) -> None:
    """Who may write to the folder could put other rows in place: it is refused, and nothing is written."""
    folder = tmp_path / "codes"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(EnvironmentFault, check=coded("state-permissions")):
        read(folder, write_table(tmp_path / "table.parquet"), number_plan())
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["part-02.csv", "2024"])
def test_a_folder_has_nothing_but_its_tables(tmp_path: Path, name: str) -> None:
    """A file that would be passed over, or a folder within, is rows that their owner believes to take part."""
    table = write_table(tmp_path / "table", n_files=2)
    (table / name).touch()
    with pytest.raises(DataError, check=coded("data-unknown-format")):
        read_site_data(table, number_plan())


def test_kept_codes_are_used_in_silence(tmp_path: Path) -> None:
    """What its owner has to hear of a table is of its reading, not of every message after it."""
    table, plan, heard = write_table(tmp_path / "table.parquet", n_unfit=3), number_plan(), list[str]()

    def tell(text: str, level: str = "") -> None:
        heard.append(text)

    load = make_loader(str(table), tell=tell, memory=tmp_path / "codes", name="rows")
    assert [load(plan).n_records for _ in range(2)] == [ALL_ROWS - 3] * 2
    assert ["data-label-missing" in said for said in heard] == [True]
