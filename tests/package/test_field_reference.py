"""docs/fields.md is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from tests.package.field_reference import render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fields.md"


def test_the_page_of_fields_is_current() -> None:
    """Each field has its check, its default and a sentence: run ``python -m experiments field_reference``."""
    assert PAGE.read_text(encoding="utf-8") == render() + "\n"
