"""The table of errors against the places that raise them: every name, every value, no entry without a place."""

from __future__ import annotations

import ast
import builtins
import errno
import io
import os
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow import errors
from hedgerow.errors import DataError, EnvironmentFault, HedgerowError, entries
from hedgerow.protocol.refusals import WireCode
from hedgerow.secagg.transitions import Code, refuse
from tests.package.error_table import BEGIN, END, classes, render

PACKAGE = Path(errors.__file__).parent
CLASSES = {kind.__name__ for kind in classes()} - {"WireRefusal", "Refusal", "OwnMistake", "Abandoned"}
PARTS = {"code", "codes", "what", "cause", "remedy", "path"}


def calls(path: Path) -> Iterator[ast.Call]:
    """Every place that makes one of our errors, but those of a code: `refuse` and `WireRefusal` make them of any."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
            yield node


def names(given: ast.expr) -> list[str]:
    """The entries that a call names: a word, or one of several by a condition."""
    if isinstance(given, ast.IfExp):
        return [*names(given.body), *names(given.orelse)]
    return [given.value] if isinstance(given, ast.Constant) else []


def placeholders(row: dict[str, str]) -> set[str]:
    """The names in an entry's sentences, without the one that is always there."""
    fields = (name for part in PARTS - {"code", "codes"} for _, name, *_ in string.Formatter().parse(row.get(part, "")))
    return {name for name in fields if name is not None} - {"code"}


@pytest.fixture(scope="module")
def places() -> dict[str, ast.Call]:
    """Where each error is made."""
    return {
        f"{path.relative_to(PACKAGE)}:{call.lineno}:{call.col_offset}": call
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in calls(path)
    }


def fits(call: ast.Call) -> bool:
    """Whether a call names entries of its class, and gives their values alone and a code that they list."""
    assert isinstance(call.func, ast.Name)
    given = {keyword.arg for keyword in call.keywords} - {"code"}
    named, table = names(call.args[0]), entries()[call.func.id]
    is_known = bool(named) and set(named) <= set(table)
    listed = {word for name in named for word in table.get(name, {}).get("codes", "").split()}
    chosen = {word for given in call.keywords if given.arg == "code" for word in names(given.value) if word}
    return is_known and chosen <= listed and set[str]().union(*(placeholders(table[name]) for name in named)) == given


def test_a_place_names_its_entry_and_gives_its_values(places: dict[str, ast.Call]) -> None:
    """The entry stands under the class that is raised, and its braces are exactly the values that are given."""
    assert len(places) > 400
    assert [place for place, call in places.items() if not fits(call)] == []


def test_every_entry_has_a_place(places: dict[str, ast.Call]) -> None:
    """No sentence stays behind when the last place goes that said it."""
    made = {(ast.unparse(call.func), name) for call in places.values() for name in names(call.args[0])}
    made |= {("WireRefusal", code.value) for code in WireCode} | {(type(refuse(code)).__name__, code) for code in Code}
    assert made == {(kind, name) for kind, rows in entries().items() for name in rows}


def test_entries_are_whole() -> None:
    """Sentences end as sentences do, and a code is a word."""
    for kind, rows in entries().items():
        for name, row in rows.items():
            assert set(row) <= PARTS and row["what"], f"{kind}.{name}"
            assert all(row[part].strip() == row[part] != "" for part in row), f"{kind}.{name}"
            assert re.fullmatch(r"[a-z]+(-[a-z]+)*|\{[a-z]+\}", row.get("code", name)), f"{kind}.{name}"
            assert row.get("code") != name, f"{kind}.{name}: its code is its name"


def test_the_document_is_what_the_table_gives() -> None:
    """Run ``python -m experiments error_table`` and paste its output between the markers."""
    document = (PACKAGE.parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
    assert document.count(BEGIN) == document.count(END) == 1
    assert document[document.index(BEGIN) : document.index(END) + len(END)] == render()


def test_codes_of_data_begin_alike() -> None:
    """Rows that are left out are counted under them, beside others."""
    assert all(row.get("code", name).startswith(("data-", "arrival-")) for name, row in entries()["DataError"].items())


def test_an_error_of_a_plan_begins_with_the_path_that_it_carries() -> None:
    """A draft's gap and an estimator's parameter are found by the path, so a person and a program read the same one."""
    rows = entries()["PlanError"]
    assert all(row["what"].startswith(row["path"]) for row in rows.values() if "path" in row)
    assert {name for name, row in rows.items() if row["what"].startswith("{path}")} - {"plan-not-found"} == {
        name for name, row in rows.items() if row.get("path", "").startswith("{path}")
    }


def test_the_sentences_take_their_values() -> None:
    fault = DataError("data-duplicate-column", source="a.csv", column="age")
    assert fault.what == "a.csv: two columns are called 'age'."
    assert fault.code == "data-duplicate-column" and fault.exit_code == 4
    assert str(fault) == f"{fault.what} {fault.cause} {fault.remedy}"


def test_what_the_table_lacks_is_still_said() -> None:
    """A text of a caller's own, a name that is misspelled, a value that is missing: no second error hides the first."""
    own = HedgerowError("The {cat} sat.", cause="It was tired.", remedy="Let it sleep.")
    assert str(own) == "The {cat} sat. It was tired. Let it sleep." and own.code == "error"
    misspelled = DataError("data-wrog-type", place="{here}")
    assert str(misspelled) == "data-wrog-type place: {here}." and misspelled.code == "data-wrog-type"
    assert DataError("data-wrong-type", place="here").cause == "The value is {value}."


def test_an_error_is_said_when_no_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator whose files were all taken could not say so: its sentences are in memory before."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    errors.entries.cache_clear()
    with monkeypatch.context() as patched:
        for module in (builtins, io, os):
            patched.setattr(module, "open", refused)
        fault = EnvironmentFault("database-locked", path="here")
    assert (fault.code, fault.exit_code) == ("database-locked", 10)
    assert "here" in fault.what and fault.remedy
