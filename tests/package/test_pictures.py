"""The pictures of the documents are of today's models, drawn by today's code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.package.pictures import DRAWN, FOLDER, demonstration, modes, sources


def test_pictures_show_what_the_code_makes(tmp_path: Path) -> None:
    """A gallery advertises no earlier model: run ``python -m experiments pictures`` after a change of either."""
    model, _ = demonstration(tmp_path)
    assert json.loads(DRAWN.read_text(encoding="utf-8")) == sources(model)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_picture_of_both_kinds_of_noise_is_current(narrow: bool) -> None:
    """The front picture says who sees what, on a telephone too."""
    name = "hedgerow-narrow" if narrow else "hedgerow"
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == modes(narrow=narrow)
