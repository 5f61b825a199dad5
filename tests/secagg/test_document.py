"""The table of states has no gap, and the list of attacks names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from hedgerow.secagg.transitions import TRANSITIONS, Code, Party, State, next_states
from tests.secagg.mutations import CHECKS

ROOT = Path(__file__).parent.parent.parent
ATTACKS = Path(__file__).with_name("attacks.md").read_text()


def test_what_the_list_of_attacks_names_exists():
    """Every test file, check and refusal code in the table of attacks is real."""
    named = set(re.findall(r"`([a-z_-]+)`", ATTACKS))
    tests = {path.stem for path in (ROOT / "tests" / "secagg").glob("test_*.py")}
    assert named <= tests | set(CHECKS) | {code.value for code in Code}
    assert len(named) > 20


def test_every_state_can_be_reached_and_no_move_repeats():
    """A state nobody enters, or a row written twice, is a mistake in the table."""
    assert {move.then for move in TRANSITIONS} | {
        State.UNENROLLED, State.COLLECTING_KEYS, State.COLLECTING_VECTORS} == set(State)  # fmt: skip
    rows = [(move.party, move.state, move.event, move.then) for move in TRANSITIONS]
    assert len(set(rows)) == len(rows)
    assert not any(next_states(party, State.STOPPED, move.event) for party in Party for move in TRANSITIONS)
