"""What a page says is tested, is: the tests that documents name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "least"),
    [("privacy.md", 35), ("proofs/queries.md", 0), ("proofs/secure-aggregation.md", 20), ("secure-aggregation.md", 1)],
)
def test_every_test_that_a_page_names_is_there(page: str, least: int) -> None:
    """A reviewer who looks an assumption or a lemma up finds the test that holds it, by its file and its name."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (ROOT / file).is_file()
        or not re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []
    assert len(named) >= least
    # A file by itself, and a room of tests.
    for path in re.findall(r"`(tests/[\w/]+(?:\.py|/))`", text):
        assert (ROOT / path).exists(), path


def test_every_lemma_and_assumption_has_a_test_or_an_owner() -> None:
    """No row of these tables is without the test that holds it, or the person who answers for it."""
    lemmas = re.findall(r"^\| L\d+ \|.*$", (ROOT / "docs/proofs/secure-aggregation.md").read_text(), re.MULTILINE)
    assert len(lemmas) == 11 and all("::test_" in row for row in lemmas)
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    part = page[page.index("## The assumptions, and what holds each") : page.index("### What no test can hold")]
    rows = [row for row in re.findall(r"^\| (?!assumption|---).*\|$", part, re.MULTILINE)]
    without = [row for row in rows if "::test_" not in row]
    assert [re.search(r"published proofs|no external review", row) is not None for row in without] == [True, True]
