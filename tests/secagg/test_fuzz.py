"""Every parser and every step survives damaged bytes: a typed refusal, or exactly one encoding for what is accepted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.secagg import fuzz
from tests.secagg.fuzz import Target, damaged, resealed, targets, try_once

TARGETS = targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_damage_is_refused_with_a_type(target: Target):
    """Two hundred injuries a target; what is accepted must be canonical."""
    assert try_once(target, target.sample) == "accepted"
    outcomes = set()
    for seed in range(200):
        draw = random.Random(f"{seed}/{target.name}")
        outcomes.add(try_once(target, resealed(target, damaged(target.sample, draw))))
    # Messages to the aggregator come back as complaints, so that one bad message never spoils a batch.
    assert outcomes - {"accepted"} or target.name.endswith(("aggregator", "liar"))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TARGETS), st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_are_refused(target: Target, data: bytes, has_prefix: bool):
    """Hypothesis's own bytes, bare and behind a genuine prefix."""
    try_once(target, resealed(target, target.sample[:5] + data if has_prefix else data))


def test_the_command_starts_from_sound_samples(capsys):
    """A sample that its own parser refuses would make every later refusal say nothing."""
    assert fuzz.main(["--minutes", "0.02"]) == 0
    assert "no finding" in capsys.readouterr().out


def test_the_fuzzer_itself_finds_a_planted_fault(monkeypatch, capsys):
    """A fuzzer that cannot fail shows nothing: a parser that raises KeyError is reported with its seed."""

    def broken(data: bytes) -> object:
        if len(data) % 7 == 0:
            raise KeyError("planted")
        return None

    monkeypatch.setattr(fuzz, "targets", lambda: [Target("broken", b"x" * 50, broken)])
    assert fuzz.main(["--minutes", "0.05"]) == 1
    assert "FINDING: broken, seed" in capsys.readouterr().out
