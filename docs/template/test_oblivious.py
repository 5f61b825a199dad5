# SPDX-License-Identifier: Apache-2.0
"""The method keeps to what its queries state."""

from pathlib import Path

from hedgerow import parse_plan
from hedgerow.plugins import load_plugin
from hedgerow.testing import check_method


def test_no_row_adds_more_than_its_query_states() -> None:
    """Types, lengths, bounds, norms, costs, rounds, and the model over 1, 3 and 50 sites."""
    load_plugin(str(Path(__file__).with_name("oblivious.py")))
    found = check_method(parse_plan(Path(__file__).with_name("plan.toml").read_text(encoding="utf-8")))
    assert found.faults == ()
