"""From a plan to an epoch's parameters, and from a query to the slot that sums it."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum

import numpy as np

from hedgerow.errors import PlanError
from hedgerow.methods.tasks import EvaluationTask, Task
from hedgerow.plan.plan import Plan
from hedgerow.privacy.query_noise import noise_of
from hedgerow.protocol.messages import EvaluationInvitation, Invitation
from hedgerow.protocol.queries import NoiseCohort, Query
from hedgerow.protocol.script import RunState
from hedgerow.rounds.specs import expected_round, mode_of, require_words, rows_of
from hedgerow.secagg._primitives.agreement import KEY_BYTES
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.encoding import HASH_BYTES
from hedgerow.secagg.guarantees import derive
from hedgerow.secagg.integers import LEAST_COLLUDERS
from hedgerow.secagg.messages import EchoCertificate, RoundSpec, manifest_hash
from hedgerow.secagg.roster import MAX_ATTEMPTS, EpochParameters, NoiseMode
from hedgerow.secagg.session import default_wishes
from hedgerow.secagg.transitions import State
from hedgerow.secagg.view import Cohort, EpochView

MAX_SLOTS = 1024
"""As many as a node holds by default; a longer run goes on in a new epoch."""
_SURELY_FEW = 2**30
"""Rows, times sites, whose sums fit 64 bits: no record adds as much as 2^24 units to an entry."""
KEY_LIST_BYTES = 1 << 25
"""The list of all members' keys; half of what an engine carries, because a late site is sent more along with it."""
BUNDLE_BYTES = 256
"""More than a member's entry in that list takes beside the keys of its slots."""
COLLECTIONS = {
    State.COLLECTING_VECTORS: RunState.COLLECTING_VECTORS,
    State.COLLECTING_ECHOES: RunState.COLLECTING_ECHOES,
    State.COLLECTING_ANSWERS: RunState.COLLECTING_ANSWERS,
}
"""What a run collects while an aggregator is in a state."""


class Following(Enum):
    """What the coordinator does next when no slot is open."""

    SLOT = "open a slot"
    EPOCH = "set a new epoch up"
    WAIT = "wait for sites"
    END = "finish"
    NOTHING = "no epoch is ready"


def invitation_to(task: Task, run_id: bytes) -> Invitation | EvaluationInvitation:
    """The message that asks a site to take part."""
    plan = json.dumps(task.plan.to_dict(), sort_keys=True, separators=(",", ":")).encode()
    if isinstance(task, EvaluationTask):
        return EvaluationInvitation(run_id, plan, task.model, task.epsilon, task.delta, task.first_round, task.noise)
    return Invitation(run_id, plan)


def cohort_of(plan: Plan, view: EpochView) -> NoiseCohort | None:
    """The sites that add the noise in an epoch; None when they add none."""
    if mode_of(plan) is not NoiseMode.DISTRIBUTED:
        return None
    promised = view.guarantees
    return NoiseCohort(promised.n_nodes, promised.n_colluders, promised.honest_group)


def shares_of(cohort: NoiseCohort | None) -> int | None:
    """Shares of noise that are counted in every sum; None when the sites add none."""
    return None if cohort is None else cohort.n_shares


def most_slots(n_members: int) -> int:
    """Slots that an epoch of so many members can have: every one of them is sent the keys of all, in one message."""
    return min(MAX_SLOTS, (KEY_LIST_BYTES // n_members - BUNDLE_BYTES) // KEY_BYTES)


def slots_for(task: Task, n_released: int, n_members: int) -> int:
    """Slots for the rest of a run, and some to repeat rounds in, as far as the list of an epoch's keys has room."""
    rest = max(1, task.n_exchanges - n_released)
    return min(most_slots(n_members), rest + rest // 4 + 8)


def check_rounds(task: Task, n_sites: int) -> None:
    """Raise PlanError (code "plan-too-many-rounds") for a task that all epochs of a run could not hold.

    Asked before anyone is invited: found out in the middle, what was released until then would be for nothing.
    """
    most = MAX_ATTEMPTS * most_slots(n_sites)
    if task.n_exchanges > most:
        raise PlanError(
            f"The plan asks for {task.n_exchanges:,} rounds; a run of {n_sites:,} sites has {most:,} at most.",
            cause=f"It has {MAX_ATTEMPTS} epochs of {most_slots(n_sites):,} rounds each: the keys of all sites are "
            f"sent in one message of {KEY_LIST_BYTES >> 20} MiB.",
            remedy="Set model.batch_size higher or model.n_trees lower; or build a roster of fewer sites.",
            code="plan-too-many-rounds",
        )


def parameters_of(plan: Plan, identity: tuple[bytes, int, bytes], n_slots: int, n_members: int) -> EpochParameters:
    """The parameters of an epoch; `identity` is the run's number, the attempt and the roster's hash."""
    run_id, attempt, roster_hash = identity
    mode = mode_of(plan)
    # One colluder costs a full graph nothing: its threshold withstands more, and is the same.
    wishes = default_wishes(n_members, LEAST_COLLUDERS)
    least, has_echo = min(plan.federation.min_sites, n_members), wishes.has_echo or bool(plan.federation.echo)
    wishes = replace(wishes, min_survivors=least, has_echo=has_echo)
    return EpochParameters(run_id, attempt, roster_hash, n_slots, wishes, mode)


def cohort_to_be(plan: Plan, members: frozenset[int]) -> Cohort:
    """The cohort of an epoch that these nodes would set up; raises Refusal as `derive`."""
    parameters = parameters_of(plan, (bytes(HASH_BYTES), 1, bytes(HASH_BYTES)), 1, len(members))
    return Cohort.promised(members, derive(len(members), parameters.wishes))


def open_slot(plan: Plan, view: EpochView, coordinator: Identity, query: Query, place: tuple[int, bytes]) -> Aggregator:
    """The aggregator of a query's slot; `place` is the slot's number and the digest of all releases before it."""
    slot, history = place
    noise = noise_of(query, shares_of(cohort_of(plan, view)), is_local=mode_of(plan) is NoiseMode.LOCAL)
    expected = expected_round(query, plan, mode_of(plan), noise.variance, view.guarantees.n_nodes, history)
    spec = RoundSpec(view.digest, slot, expected.purpose, expected.model, expected.vectors, expected.noise)
    return Aggregator.open(view, coordinator, spec)


def check_words(task: Task, n_sites: int) -> None:
    """Raise PlanError (code "plan-sums-too-large") when some sum of a task would not fit any word.

    Asked before anything is released: found out in the middle, what was released until then would be for nothing.
    """
    plan = task.run_plan
    if rows_of(plan) * n_sites < _SURELY_FEW:
        return
    program = task.with_structure_seed(0).program()
    is_local = plan.privacy.noise == "local"
    try:
        query = next(program)
        while True:
            require_words(query, plan, noise_of(query, is_local=is_local).variance, n_sites)
            query = program.send(np.zeros(query.release_length, dtype=np.int64))
    except StopIteration:
        return


def certificate_of(slot: Aggregator) -> bytes:
    """The echo certificate of a slot that was brought back from the journal; empty when none was sent."""
    if slot.state is not State.COLLECTING_ANSWERS or not slot.echoes:
        return b""
    nodes = tuple(sorted(slot.echoes))
    return EchoCertificate(manifest_hash(slot.manifest), nodes, tuple(slot.echoes[node] for node in nodes)).to_bytes()
