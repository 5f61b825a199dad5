"""Every page that quotes the demonstration's accuracy quotes one recorded run: docs/runs/beside.txt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EPSILONS = ("0.5", "1", "3")
PERSON, ROW, BARE, POOLED = (
    "Hedgerow, for a person", "Hedgerow, for a row", "Hedgerow, without noise", "XGBoost on pooled rows",
)  # fmt: skip
PAGES = {
    "README.md": {
        "**Hedgerow, private for a person**": PERSON, "DP-EBM on pooled rows, for a person": "=",
        "Hedgerow, private for a row": ROW, "the same trees without noise": BARE, POOLED: "=",
        "each site alone, XGBoost": "alone",
    },
    "docs/numbers.md": {
        "**Hedgerow, private for a person**": PERSON, "DP-EBM on pooled rows, for a person": "=",
        "Hedgerow, private for a row": ROW, "DP-EBM on pooled rows, for a row": "=",
        "the same trees without noise": BARE, POOLED: "=", "each site alone, XGBoost": "alone",
        "Flower's quickstart for XGBoost": "=", "NVFlare's histogram recipe": "=",
        "Flower's bagging, all sites in each round, best round": "Flower's bagging, all sites, best round",
    },
    "docs/index.md": {
        "private for a person, epsilon 1": f"{PERSON}, epsilon 1", "private for a row, epsilon 1": f"{ROW}, epsilon 1",
        "the same trees without noise": BARE, POOLED: "=", "each site alone, XGBoost": "alone",
    },
}  # fmt: skip
"""By page, the lines of its table that have figures, and the line of the recorded run; "=" for the same name."""


def recorded() -> dict[str, str]:
    """The means of the recorded run by their names, as pages print them: three digits."""
    text = (ROOT / "docs" / "runs" / "beside.txt").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^\| (.+?) \| ([\d.]+) ± [\d.]+ \|$", text)
    return {name: f"{float(mean):.3f}"[1:] for name, mean in lines}


def expected(name: str, found: dict[str, str]) -> list[str]:
    """The figures of a line, in order."""
    if name == "alone":
        alone = sorted(found[f"site {number} alone, XGBoost"] for number in range(1, 7))
        return [f"{alone[0]} to {alone[-1]}"]
    return [found[name]] if name in found else [found[f"{name}, epsilon {epsilon}"] for epsilon in EPSILONS]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages_quote_the_recorded_run(page: str) -> None:
    """A reader who meets two figures for one demonstration trusts neither."""
    rows = re.findall(r"(?m)^\| (.+) \|$", (ROOT / page).read_text(encoding="utf-8"))
    cells = {row.split(" | ")[0]: [cell.strip(" *") for cell in row.split("|")[1:]] for row in rows}
    found = recorded()
    for line, name in PAGES[page].items():
        assert [cell for cell in cells[line] if cell] == expected(line if name == "=" else name, found), line


def test_no_page_quotes_another_run_of_the_demonstration() -> None:
    """Single runs and other splits of people differ by .01: they stay in docs/runs."""
    means = set(recorded().values())
    text = (ROOT / "docs/how-to/choose-epsilon.md").read_text(encoding="utf-8")
    sentence = " ".join(text.split()).partition("The demonstration does so")[2].partition("runs/beside.txt")[0]
    quoted = re.findall(r"(?<!\d)\.\d{3}", sentence)
    assert len(quoted) == 2 and set(quoted) <= means
    for page in ("README.md", "docs/index.md"):
        assert not re.findall(r"0\.\d{4} +█", (ROOT / page).read_text(encoding="utf-8"))
