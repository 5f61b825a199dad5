"""docs/fields.md is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from tests.package.field_reference import kinds, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fields.md"


def test_the_page_of_fields_is_current() -> None:
    """Each field has its check, its default and a sentence: run ``python -m experiments field_reference``."""
    assert PAGE.read_text(encoding="utf-8") == render() + "\n"


def test_the_page_of_queries_names_every_kind_of_sum() -> None:
    """A reviewer finds there what one record adds to each sum that a node may be asked for."""
    page = (PAGE.parent / "proofs" / "queries.md").read_text(encoding="utf-8")
    assert [each.__name__ for each in kinds() if f"`{each.__name__}`" not in page] == []
