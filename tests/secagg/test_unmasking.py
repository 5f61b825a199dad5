"""Rebuilding secrets: the usual case, in which nobody lies, takes a short way that must end where the long one does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto import PRIME, PrimitiveFault, interpolate, parse_share, secret_from, split, weights_at
from hedgerow.secagg import masks
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.messages import Answer, Header
from hedgerow.secagg.transitions import Code, SumAbandoned
from tests.secagg.lab import Lab, require_refusal

Fits = Callable[[bytes], bool]


class Searcher:
    """The search without a short way: every set of holders in its turn, until one gives a secret that fits."""

    def __init__(self, threshold: int) -> None:
        self.threshold, self.suspects = threshold, set[int]()

    def recover(self, shares: Mapping[int, int | None], fits: Fits) -> bytes | Code:
        values = {holder + 1: share for holder, share in sorted(shares.items()) if share is not None}
        self.suspects |= {holder for holder, share in shares.items() if share is None}
        trusted = [x for x in values if x - 1 not in self.suspects]
        if len(values) < self.threshold:
            return Code.TOO_FEW_ANSWERS
        for subset in islice(self.subsets(trusted, list(values)), masks.MAX_SUBSETS):
            try:
                secret = secret_from(weights_at(0, subset), [values[x] for x in subset])
            except PrimitiveFault:
                continue
            if fits(secret):
                if list(subset) != trusted[: self.threshold]:
                    others = [x for x in values if x not in subset]
                    known = [values[x] for x in subset]
                    wrong = [x for x in others if interpolate(weights_at(x, subset), known) != values[x]]
                    self.suspects |= {x - 1 for x in wrong}
                return secret
        return Code.SECRET_UNRECOVERABLE

    def subsets(self, trusted: list[int], everyone: list[int]) -> Iterator[tuple[int, ...]]:
        for among in (trusted, everyone):
            for left_out in range(len(among) - self.threshold + 1):
                for omitted in combinations(among, left_out):
                    yield tuple([x for x in among if x not in omitted][: self.threshold])


@st.composite
def sharings(draw):
    """A threshold and several secrets, each shared among some holders, of whom some lie in several ways."""
    n_holders = draw(st.integers(2, 7))
    threshold, n_secrets = draw(st.integers(2, n_holders)), draw(st.integers(1, 4))
    generator = random.Random(draw(st.integers(0, 2**32 - 1)))
    liars = draw(st.sets(st.integers(0, n_holders - 1), max_size=3))
    secrets = []
    for _ in range(n_secrets):
        secret = generator.randbytes(32)
        dealt = split(secret, range(1, n_holders + 1), threshold, generator.randbytes)
        shares: dict[int, int | None] = {holder: parse_share(share) for holder, share in enumerate(dealt)}
        for holder in liars:
            lie = draw(st.sampled_from(["honest", "missing", "no element", "off by one", "anything"]))
            value = shares[holder] or 0
            if lie == "missing":
                del shares[holder]
            elif lie != "honest":
                lies = {"no element": None, "off by one": (value + 1) % PRIME, "anything": generator.randrange(PRIME)}
                shares[holder] = lies[lie]
        order = draw(st.permutations(list(shares)))
        secrets.append((secret, {holder: shares[holder] for holder in order}))
    return threshold, secrets


def outcome_of(reconstructor: masks.Reconstructor, node: int, shares, fits: Fits) -> bytes | Code:
    try:
        return reconstructor.recover(node, shares, fits)
    except SumAbandoned as fault:
        assert fault.peer == node
        return fault.reason


@settings(max_examples=300, deadline=None)
@given(sharings())
def test_the_short_way_ends_where_the_search_does(sharing):
    """Whoever lies, about whichever secret: the same secrets, the same refusals, and the same suspects after each."""
    threshold, secrets = sharing
    reconstructor, searcher = masks.Reconstructor(threshold), Searcher(threshold)
    for node, (secret, shares) in enumerate(secrets):
        expected = searcher.recover(shares, secret.__eq__)
        assert outcome_of(reconstructor, node, shares, secret.__eq__) == expected
        assert reconstructor.suspects == searcher.suspects


def test_a_secret_that_does_not_fit_is_not_returned():
    """The short way asks the same test as the search: shares that agree with one another are not enough."""
    dealt = split(bytes(32), (1, 2, 3), 2, random.Random(1).randbytes)
    shares = {holder: parse_share(share) for holder, share in enumerate(dealt)}
    assert outcome_of(masks.Reconstructor(2), 5, shares, lambda secret: False) is Code.SECRET_UNRECOVERABLE


def test_shares_are_read_by_the_node_that_they_are_of():
    """What was withheld has none, and a number that is no field element is told from one that is."""
    shares = (PRIME.to_bytes(33, "big"), (PRIME - 1).to_bytes(33, "big"), bytes(33))
    answer = Answer(4, bytes(32), (1, 0, 2, 1), shares)
    assert masks.shares_in(answer, (2, 4, 7, 9)) == {2: None, 7: PRIME - 1, 9: 0}


def released(lab: Lab, state: Aggregator) -> tuple[list[int], tuple[int, ...], tuple[int, ...]]:
    release = state.release()[1]
    return release.sums["leaves"].tolist(), release.survivors, release.suspects


def test_the_sums_are_made_when_no_more_vectors_can_come(lab):
    """From then on nobody holds a single vector: neither memory nor journal, and a release needs none, twice over."""
    collected = lab.collected(absent=(3,))
    state, requests = collected.close_vectors(lab.session.coordinator)
    assert not collected.totals and all(len(upload.payload) == 16 for upload in collected.uploads.values())
    masked = sum(np.frombuffer(upload.payload, "<u4") for upload in collected.uploads.values())
    assert np.array_equal(state.totals["leaves"], masked) and not any(u.payload for u in state.uploads.values())
    journalled = Aggregator.restore(lab.view, state.to_bytes())
    assert journalled.to_bytes() == state.to_bytes() and journalled.requests() == requests
    assert not any(upload.payload in state.to_bytes() for upload in collected.uploads.values())
    answers = [lab.answered(node, request).message or b"" for node, request in requests.items()]
    for found in (state.receive(answers)[0], journalled.receive(answers)[0]):
        for _ in range(2):
            assert released(lab, found) == ([1 + 2 + 3 + 5] * 4, (0, 1, 2, 4), ())
            assert np.array_equal(found.totals["leaves"], masked)


@pytest.mark.parametrize("totals", [{}, {"leaves": np.zeros(3, "<u4")}, {"leaves": np.zeros(4, "<u8")}])
def test_a_journal_without_the_sums_is_refused(lab, totals):
    """A state that has fixed its survivors cannot make the sum of their vectors again."""
    state, _ = lab.collected().close_vectors(lab.session.coordinator)
    damaged = replace(state, totals=totals).to_bytes()
    require_refusal(lambda: Aggregator.restore(lab.view, damaged), Code.CORRUPT_STATE)


def test_a_journal_whose_state_and_manifest_do_not_fit_is_refused(lab):
    """A manifest is there exactly when no more vectors can come."""
    collected = lab.collected()
    closed, _ = collected.close_vectors(lab.session.coordinator)
    early, late = replace(closed, state=collected.state), replace(collected, state=closed.state)
    for unfit in (early, late, replace(closed, manifest=b"")):
        require_refusal(lambda unfit=unfit: Aggregator.restore(lab.view, unfit.to_bytes()), Code.CORRUPT_STATE)


def test_what_was_parsed_on_arrival_is_what_a_restored_state_parses(lab):
    """Headers and shares are kept as they were checked; a journal brings the same back."""
    state, requests = lab.collected(absent=(1,)).close_vectors(lab.session.coordinator)
    answers = [lab.answered(node, request).message or b"" for node, request in requests.items()]
    state = state.receive(answers)[0]
    restored = Aggregator.restore(lab.view, state.to_bytes())
    assert restored.headers == state.headers and restored.shares == state.shares
    assert state.headers == {node: Header.from_signed(upload.header) for node, upload in state.uploads.items()}
    assert set(state.shares) == {0, 2, 3, 4} and set(state.shares[0]) == {0, 1, 2, 3, 4}
    assert released(lab, restored) == released(lab, state)


@pytest.mark.parametrize("kind", ["upload", "answer"])
def test_what_is_refused_leaves_nothing_behind(lab, kind):
    """A second, different message of a node changes neither what is kept nor what was parsed, nor the state before."""
    empty = state = lab.open()
    first, twin = lab.masked(0, state), Lab(seed=1).masked(0, state, {"leaves": np.full(4, 7, np.int64)})
    if kind == "upload":
        state, complaints = state.receive([first])
        kept, second = state.headers, twin
    else:
        empty, requests = lab.collected("tree-2").close_vectors(lab.session.coordinator)
        answer = lab.answered(0, requests[0]).message or b""
        state, complaints = empty.receive([answer])
        lie = replace(Answer.from_signed(answer), kinds=(0,) * 5, shares=())
        kept, second = state.shares, lie.to_signed(lab.session.contexts["site-0"].identity)
    assert not complaints and set(kept) == {0}
    assert not (empty.headers if kind == "upload" else empty.shares)
    before = dict(kept)
    after, complaints = state.receive([second])
    assert [complaint.reason for complaint in complaints] == [Code.CONTRADICTION]
    assert (after.headers if kind == "upload" else after.shares) == before == kept
