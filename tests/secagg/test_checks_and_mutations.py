"""The named checks hold on the code as it is, and each turns red when the code is weakened."""

from __future__ import annotations

import pytest

from tests.secagg.mutations import CHECKS, MUTATIONS, main, turns_red


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_holds(name):
    """Each check of the shared list is green without a mutation."""
    CHECKS[name]()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_the_weakening_is_noticed(mutation):
    """A test that cannot fail protects nothing: under its weakening, every named check fails."""
    assert turns_red(mutation)


def test_every_check_has_a_mutation_and_the_table_is_printed(capsys):
    """No check is in the list without a weakening that it catches, and the command reports all as caught."""
    assert {mutation.check for mutation in MUTATIONS} == set(CHECKS)
    assert len(MUTATIONS) >= 10
    assert main([]) == 0
    assert f"{len(MUTATIONS)} of {len(MUTATIONS)} " in capsys.readouterr().out
