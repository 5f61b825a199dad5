"""A site's clock may be off by a day, or by years: nothing that decides anything looks at the time of day."""

from __future__ import annotations

import ast
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509

import hedgerow
from hedgerow.transport.identities import Role, new_identity

ROOMS = (
    "protocol", "secagg", "trees", "training", "privacy", "client", "server", "transport", "storage", "app", "cli",
)  # fmt: skip
TIMES_OF_DAY = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}

STAMPS_LINES = {"monitor.py", "life.py"}
"""The monitor writes the time beside each line that it prints, and a node notes when it last heard of its coordinator
for `join --status`: neither decides anything of a run by it."""


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_asks_for_the_time_of_day(room: str) -> None:
    """Timeouts count from clocks that never go back; a changed time of day must not end or prolong anything."""
    place = Path(hedgerow.__file__).parent / room
    found = sorted(place.rglob("*.py")) or [place.with_suffix(".py")]
    files = [path for path in found if path.name not in STAMPS_LINES]
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                assert (owner, node.attr) not in TIMES_OF_DAY, f"{path}: {owner}.{node.attr}"


@pytest.mark.parametrize("role", list(Role))
def test_a_certificate_is_good_whatever_the_clock_says(role: Role) -> None:
    """TLS does look at the clock, so certificates begin before all and end never; rosters end them instead."""
    public = new_identity("north", role, bytes(32)).public
    certificate = x509.load_pem_x509_certificate(public.certificate_pem)
    assert certificate.not_valid_before_utc.replace(tzinfo=None) <= datetime(2000, 1, 1)
    assert certificate.not_valid_after_utc.replace(tzinfo=None) >= datetime(9999, 12, 31)
