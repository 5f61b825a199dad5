"""Whatever drops out and whenever: the exact integer sum over the survivors, or a typed abort, never a wrong number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.secagg.guarantees import Wishes
from hedgerow.secagg.messages import NodePolicy, NoiseMode, VectorSpec
from hedgerow.secagg.session import Drops, EpochSession
from hedgerow.secagg.transitions import Code, Refusal, SumAbandoned
from tests.secagg.lab import seeded_entropy

LENIENT = NodePolicy(min_cohort=2, min_honest_survivors=1, min_honest_group=1)


@st.composite
def cohorts(draw):
    n = draw(st.integers(2, 12))
    sites = [f"site-{i}" for i in range(n)]
    has_echo = draw(st.booleans())
    colluders = draw(st.integers(0, max(0, (n - 1) // 4)))
    lowest = max(2, colluders + 1) if has_echo else (n + colluders) // 2 + 1
    wishes = Wishes(
        colluders,
        threshold=draw(st.integers(min(lowest, n), n)),
        min_survivors=draw(st.integers(0, n)),
        has_echo=has_echo,
    )
    some = st.lists(st.sampled_from(sites), max_size=max(1, n // 4), unique=True)
    setup = {"keys": draw(some), "shares": draw(some), "acknowledgements": draw(some)} if draw(st.booleans()) else {}
    drops = Drops(draw(some), draw(some), draw(some))
    vectors = []
    for index in range(draw(st.integers(1, 3))):
        width = draw(st.sampled_from([32, 64]))
        bound = draw(st.sampled_from([1, 1000, (2 ** (width - 1) - 1) // n]))
        vectors.append(VectorSpec(f"v{index}", draw(st.integers(1, 40)), width, bound, bound * n))
    return sites, wishes, setup, drops, tuple(vectors), draw(st.integers(0, 2**32 - 1))


def play(cohort):
    """Set one cohort up and take two sums, with its dropouts."""
    sites, wishes, setup, drops, vectors, seed = cohort
    generator = np.random.default_rng(seed)
    values = {
        site: {v.vector_id: generator.integers(-v.entry_bound, v.entry_bound + 1, v.length) for v in vectors}
        for site in sites
    }
    try:
        session = EpochSession(sites, 2, seeded_entropy(seed), wishes=wishes, policy=LENIENT, silent_at_setup=setup)
    except SumAbandoned as abort:
        assert abort.reason is Code.TOO_FEW_READY
        return
    except Refusal as refusal:
        assert refusal.reason in (Code.COHORT_TOO_SMALL, Code.PARAMETERS_REFUSED)
        return
    for purpose in ("first", "second"):
        spec = session.spec(purpose, vectors)
        present = [site for site in session.nodes if site not in drops.vectors]
        try:
            release = session.aggregate(spec, values, drops=drops)
        except SumAbandoned as abort:
            assert abort.reason in (Code.TOO_FEW_UPLOADS, Code.TOO_FEW_ANSWERS)
            assert len(present) < len(sites) or drops.echoes or drops.answers
            continue
        assert release.survivors == tuple(session.nodes[site].node for site in present)
        assert not release.suspects
        for vector in vectors:
            exact = sum(values[site][vector.vector_id].astype(object) for site in present)
            assert (release.sums[vector.vector_id].astype(object) == exact).all()


@settings(max_examples=40)
@given(cohorts())
def test_exact_sum_or_typed_abort(cohort):
    """Random n <= 12, thresholds, widths, lengths, signs and dropouts at every phase of set-up and aggregation."""
    play(cohort)


@pytest.mark.slow
@settings(max_examples=200)
@given(cohorts())
def test_exact_sum_or_typed_abort_in_many_cohorts(cohort):
    """The same in five times as many cohorts."""
    play(cohort)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 12])
def test_everyone_present_gives_the_sum(n):
    """The plain case of every small cohort, two nodes included where both add their own noise."""
    mode = NoiseMode.DISTRIBUTED if n == 2 else NoiseMode.SERVER
    policy = NodePolicy(min_cohort=2) if n == 2 else NodePolicy()
    sites = [f"site-{i}" for i in range(n)]
    session = EpochSession(sites, 1, seeded_entropy(n), noise=mode, policy=policy)
    vectors = {site: {"v": np.full(3, i - 1, np.int64)} for i, site in enumerate(sites)}
    noise = {site: {"v": np.full(3, 10 * i, np.int64)} for i, site in enumerate(sites)} if n == 2 else None
    release = session.aggregate(session.spec("p", (VectorSpec("v", 3, 32, 100, 100 * n),)), vectors, noise=noise)
    expected = sum(range(-1, n - 1)) + (10 if n == 2 else 0)
    assert release.sums["v"].tolist() == [expected] * 3


def test_two_nodes_are_refused_without_their_own_noise():
    """With two nodes an un-noised sum gives each the other's vector, so the default policy refuses."""
    with pytest.raises(Refusal) as refused:
        EpochSession(["a", "b"], 1, seeded_entropy(1), policy=NodePolicy(min_cohort=2))
    assert refused.value.reason is Code.PARAMETERS_REFUSED


def test_a_sparse_cohort_with_echo_sums_exactly_under_dropouts():
    """Forty nodes on a random Harary graph, drops before the vector, the echo and the answer."""
    wishes = Wishes(9, max_drops=4, is_sparse=True, has_echo=True)
    sites = [f"site-{i}" for i in range(40)]
    session = EpochSession(sites, 2, seeded_entropy(4), wishes=wishes)
    assert 0 < session.view.guarantees.degree < 39
    values = {site: {"v": np.arange(5, dtype=np.int64) * i} for i, site in enumerate(sites)}
    drops = Drops(vectors=sites[:2], echoes=sites[2:3], answers=sites[3:4])
    release = session.aggregate(session.spec("p", (VectorSpec("v", 5, 64, 10_000, 400_000),)), values, drops=drops)
    assert release.sums["v"].tolist() == (np.arange(5) * sum(range(2, 40))).tolist()


def test_a_burned_slot_leaves_the_purpose_free():
    """Too few uploads: the slot is gone, the purpose succeeds in the next one."""
    sites = [f"site-{i}" for i in range(5)]
    session = EpochSession(sites, 2, seeded_entropy(4))
    vectors = (VectorSpec("v", 1, 32, 10, 50),)
    values = {site: {"v": np.array([2])} for site in sites}
    with pytest.raises(SumAbandoned):
        session.aggregate(session.spec("p", vectors), values, drops=Drops(vectors=sites[:2]))
    assert session.aggregate(session.spec("p", vectors), values).sums["v"].tolist() == [10]
