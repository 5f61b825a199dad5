"""The inventory of the four papers: nothing in it points nowhere, and no difference goes without a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import papers
from experiments.__main__ import available
from experiments.catalogue import EXPERIMENTS
from experiments.papers import FAR, PAGE, Inventory, find_faults, read_inventory, render


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return read_inventory()


@pytest.fixture(scope="module")
def commands() -> set[str]:
    return set(available())


def test_every_entry_has_its_command_record_and_sentence(inventory: Inventory, commands: set[str]) -> None:
    """A reader who follows an entry finds code, command and record, and a reason for each difference."""
    assert find_faults(inventory, commands) == []


def test_the_page_is_what_the_command_prints(inventory: Inventory) -> None:
    """A record that is run again changes the page in the same commit: `python -m experiments papers --write`."""
    page = PAGE.read_text(encoding="utf-8")
    assert render(inventory) in page


def test_all_tables_and_figures_of_the_catalogue_are_entries(inventory: Inventory) -> None:
    """A table that is added to the catalogue would else be compared with nothing."""
    assert set(EXPERIMENTS) <= {entry.command for entry in inventory.entries}
    compared = {each.name.split(":")[0] for each in inventory.comparisons}
    assert compared >= {name for name, found in EXPERIMENTS.items() if found.published}
    assert compared >= {name for name, found in EXPERIMENTS.items() if any(panel.published for panel in found.panels)}
    assert set(inventory.papers) == {entry.paper_name for entry in inventory.entries}


def test_what_is_taken_away_is_missed(inventory: Inventory, commands: set[str]) -> None:
    """Each kind of gap is a fault: a command that is gone, a record, a sentence, a state, and a reason."""
    assert find_faults(replace(inventory, reasons=()), commands)
    far = [each for each in inventory.comparisons if each.errors is not None and abs(each.errors) > FAR]
    bare = find_faults(replace(inventory, reasons=()), commands)
    assert len(bare) == len(far) > 10 and all("no reason" in fault for fault in bare)
    first = inventory.entries[0]
    assert first.record and first.state == "as printed" and not first.sentence
    for change in (
        {"command": "gone"},
        {"command": ""},
        {"record": "gone.txt"},
        {"record": ""},
        {"source": "gone/gone.py"},
        {"state": "differs"},
        {"state": ""},
        {"ours": "nothing like it"},
    ):
        assert find_faults(replace(inventory, entries=(replace(first, **change),), reasons=()), commands), change
    reason = inventory.reasons[0]
    for other in (replace(reason, shown_by="gone"), replace(reason, where=("nothing: *",))):
        assert len(find_faults(replace(inventory, reasons=(*inventory.reasons, other)), commands)) == 1


def test_our_numbers_come_from_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new record changes the comparison; a cell or a point that it lacks is not run, and never an old number."""
    table = EXPERIMENTS["table4"]
    text = papers.read_record("table4.txt")
    published = (table.published or {})["log"]["bank"]
    shifted = text.replace("15 runs a cell", "5 runs a cell")
    monkeypatch.setattr(papers, "read_record", lambda name: shifted)
    before = {each.name: each for each in papers.compare_table(table)}
    assert before["table4: log, bank"].paper == f"{published[0]:.4f} ± {published[1]:.4f}"
    assert before["table4: log, nomao"].errors is None and before["table4: log, nomao"].ours == ""
    row = next(line for line in shifted.splitlines() if line.startswith("| log |"))
    other = "| log | 0.8698 ± 0.0087, 0.9698 ± 0.0087, +9.9 |" + "|".join(row.split("|")[3:])
    monkeypatch.setattr(papers, "read_record", lambda name: shifted.replace(row, other))
    found = next(each for each in papers.compare_table(table) if each.name == "table4: log, bank")
    assert found.errors == pytest.approx(0.1 / (0.0087 * (1 / 15 + 1 / 5) ** 0.5), rel=1e-3)
    monkeypatch.setattr(papers, "read_record", lambda name: "")
    for numbers in ("table4", "table6", "figure12", "s-gbdt", "dpboost", "dp-xgboost, leaks closed"):
        assert {(each.ours, each.errors) for each in papers.comparisons_of(numbers)} == {("", None)}
