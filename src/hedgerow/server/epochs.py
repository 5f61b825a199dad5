"""How an epoch is set up: who takes part, with which parameters, and who has broken a set-up.

Everything is journalled before the messages that depend on it are queued.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hedgerow.codec import HASH_BYTES
from hedgerow.crypto.agreement import KEY_BYTES
from hedgerow.errors import AggregationError, PlanError, RemoteProtocolError
from hedgerow.methods.tasks import Task
from hedgerow.plan.plan import Plan
from hedgerow.protocol.messages import MessageKind, Payload
from hedgerow.protocol.script import RunState
from hedgerow.rounds import mode_of
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.guarantees import derive
from hedgerow.secagg.integers import LEAST_COLLUDERS
from hedgerow.secagg.roster import MAX_ATTEMPTS, EpochParameters
from hedgerow.secagg.session import default_wishes
from hedgerow.secagg.transitions import Abandoned, Code, State, refuse
from hedgerow.secagg.view import Cohort
from hedgerow.server.facts import Run
from hedgerow.server.journal import BurntSlot
from hedgerow.server.sites import MOST_BROKEN_SETUPS, SiteRecord
from hedgerow.server.status import RunEventKind

MAX_SLOTS = 1024
"""As many as a node holds by default; a longer run goes on in a new epoch."""
SLOT_KEYS_BYTES = 1 << 25
"""The slot keys of all members, which the coordinator compares with one another, holds and journals."""

# The parameters of an epoch ----------------------------------------------------------------------------------------


def most_slots(n_members: int) -> int:
    """Slots that an epoch of so many members can have: the coordinator holds the keys of all."""
    return min(MAX_SLOTS, SLOT_KEYS_BYTES // n_members // KEY_BYTES)


def slots_for(task: Task, n_released: int, n_members: int) -> int:
    """Slots for the rest of a run, and some to repeat rounds in, as far as the coordinator holds their keys."""
    rest = max(1, task.n_exchanges - n_released)
    return min(most_slots(n_members), rest + rest // 4 + 8)


def check_rounds(task: Task, n_sites: int) -> None:
    """Raise PlanError (code "plan-too-many-rounds") for a task that all epochs of a run could not hold.

    Asked before anyone is invited: found out in the middle, what was released until then would be for nothing.
    """
    most = MAX_ATTEMPTS * most_slots(n_sites)
    if task.n_exchanges > most:
        raise PlanError(
            "plan-too-many-rounds",
            n_rounds=task.n_exchanges,
            n_sites=n_sites,
            most=most,
            n_epochs=MAX_ATTEMPTS,
            n_slots=most_slots(n_sites),
            megabytes=SLOT_KEYS_BYTES >> 20,
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


def _cohort_to_be(plan: Plan, members: frozenset[int]) -> Cohort:
    """The cohort of an epoch that these nodes would set up; raises Refusal as `derive`."""
    parameters = parameters_of(plan, (bytes(HASH_BYTES), 1, bytes(HASH_BYTES)), 1, len(members))
    return Cohort.promised(members, derive(len(members), parameters.wishes))


# Who takes part ----------------------------------------------------------------------------------------------------


def agreeing(run: Run) -> set[str]:
    """The sites that would take part in a set-up that begins now, but for what was masked before."""
    return run.sites.agreeing(run.sites.available, run.plan)


def members_of_next(run: Run) -> set[str]:
    """The sites that take part in a set-up that begins now; none, where they would not mask the next query there.

    A node masks no round in two epochs of which both sums could be opened. Where a slot of the next query was given
    up after vectors of it had come, an epoch without those who came since may do.
    """
    members, least = agreeing(run), run.sites.least(run.plan)
    if len(members) < least:
        return members
    burnt = [slot for slot in _burnt_of_round(run) if slot.masked]
    for among in (members, members.intersection(*(run.sites.names(slot.cohort.members) for slot in burnt))):
        nodes = frozenset(run.sites[site].node for site in among)
        against = [slot.cohort for slot in burnt if nodes & slot.masked]
        if len(among) >= least and all(_cohort_to_be(run.plan, nodes).excludes(one) for one in against):
            return among
    return set()


def explains_refusal(run: Run, site: SiteRecord, code: str) -> bool:
    """Whether a site refuses to mask a round again of which this run has given a slot up, as it has to.

    Its vector may have left without coming here. In the local model a site that was started again does not know the
    noise that it has sent.
    """
    if code != Code.PURPOSE_ANSWERED.value or run.view is None:
        return False
    now, is_local = Cohort.of(run.view), run.plan.privacy.noise == "local"
    earlier = [slot.cohort for slot in _burnt_of_round(run) if site.node in slot.cohort.members]
    return any(is_local or not now.excludes(cohort) for cohort in earlier)


def too_few(run: Run) -> AggregationError:
    """Why the run cannot go on with the sites that are there."""
    there = agreeing(run)
    if len(there) < run.sites.least(run.plan) or members_of_next(run):
        return run.sites.too_few(run.plan)
    lacking = (run.sites.names(slot.cohort.members - slot.masked) for slot in _burnt_of_round(run))
    return AggregationError(
        "round-not-repeatable",
        round=run.replica.n_releases,
        there=", ".join(sorted(there)),
        lacking=", ".join(sorted(set[str]().union(*lacking))),
        said=run.sites.said_of_them(),
    )


def _burnt_of_round(run: Run) -> list[BurntSlot]:
    """The slots of the next query that were given up."""
    return [slot for slot in run.burnt if slot.round == run.replica.n_releases]


# The set-up --------------------------------------------------------------------------------------------------------


def begin_setup(run: Run) -> None:
    """Set a new epoch up with all sites that are ready; AggregationError when there are too few."""
    members = members_of_next(run)
    while len(members) < run.sites.least(run.plan):
        if not run.take_back():
            raise too_few(run)
        members = members_of_next(run)
    if run.attempt >= MAX_ATTEMPTS:
        raise AggregationError("no-epoch", n_epochs=MAX_ATTEMPTS, said=run.sites.said_of_them())
    run.attempt += 1
    n_slots = slots_for(run.task, len(run.releases), len(members))
    identity = (run.run_id, run.attempt, run.setup.roster.hash())
    parameters = parameters_of(run.plan, identity, n_slots, len(members))
    run.journal.save_attempt(run.attempt)
    run.view = run.slot = None
    run.sites.begin_epoch(members)
    run.epoch_setup = EpochSetup(run.setup.roster, parameters)
    run.enter(RunState.SETTING_UP)
    for site in run.sites.invited:
        run.send_origin(site)
        run.send(site, Payload(MessageKind.ENROL, parameters.to_bytes()))


def advance_setup(run: Run) -> bool:
    """Close a step of the set-up and begin the next; returns whether the epoch is ready."""
    setup = run.epoch_setup
    if setup is None:
        return False
    try:
        if setup.state is State.COLLECTING_ACKNOWLEDGEMENTS:
            _begin_epoch(run, setup)
            return True
        run.epoch_setup, messages = _next_step(run, setup)
    except (Abandoned, RemoteProtocolError) as fault:
        # A site fell silent in the middle; those who are there begin again.
        run.tell(RunEventKind.ABANDONED, code=fault.code)
        _judge_setup(run, setup)
        run.epoch_setup = None
        run.enter(RunState.GATHERING)
        return False
    run.enter(RunState.SETTING_UP)
    for node, message in messages.items():
        if run.sites.of(node).is_setting_up:
            run.send(run.sites.of(node), Payload(MessageKind.SETUP, message))
    return False


def _next_step(run: Run, setup: EpochSetup) -> tuple[EpochSetup, dict[int, bytes]]:
    """The set-up with its next step open, and the messages that it begins with, by node."""
    if setup.state is State.COLLECTING_SHARES:
        return setup.close_shares()
    if setup.state is State.COLLECTING_NONCES:
        return setup.close_nonces()
    n_invited = len(run.sites.invited)
    if len(setup.advertisements) < n_invited:
        # The parameters were made for more sites, and fewer need others to be as safe.
        raise refuse(Code.TOO_FEW_READY, f"{len(setup.advertisements)} of {n_invited}.")
    following, listed = setup.close_keys()
    return following, dict.fromkeys(following.advertisements, listed)


def _begin_epoch(run: Run, setup: EpochSetup) -> None:
    """The epoch is ready: tell its nodes so, and invite the others again."""
    run.view, ready_list = setup.close_acknowledgements({site.node: site.conduct.weight for site in run.sites})
    _judge_setup(run, setup)
    is_origin = run.origin is None
    if is_origin:
        run.begin_trees(run.view)
    run.journal.save_epoch(run.view, is_origin=is_origin)
    run.next_slot, run.epoch_setup = 0, None
    members = [site for site in run.sites if site.is_setting_up]
    for site in members:
        if run.view.is_ready(site.node):
            site.enter_epoch()
        else:
            run.invite(site)
    for site in members:
        if site.is_inside:
            site.knows_origin |= is_origin
            run.send(site, Payload(MessageKind.SETUP, ready_list))


def _judge_setup(run: Run, setup: EpochSetup) -> None:
    """Note which sites have broken a set-up that failed, or have kept themselves out of one that did not."""
    arrived: Collection[int] = {
        State.COLLECTING_KEYS: setup.advertisements,
        State.COLLECTING_NONCES: setup.nonces,
        State.COLLECTING_SHARES: setup.shares,
        State.COLLECTING_ACKNOWLEDGEMENTS: setup.acknowledgements,
    }[setup.state]
    if setup.state is State.COLLECTING_ACKNOWLEDGEMENTS:
        arrived = set(arrived) & set(setup.shares)
        for pair in setup.unacknowledged():
            for one, other in (pair, pair[::-1]):
                run.sites.of(one).conduct.unacknowledged[run.sites.name(other)] += 1
                run.tell(RunEventKind.COMPLAINT, run.sites.name(one), Code.NOT_ACKNOWLEDGED.value)
    missing = [site for site in run.sites.invited if site.node not in arrived]
    if 2 * len(missing) >= len(run.sites.invited):
        # When most are missing it is the network, or this machine.
        return
    for site in missing:
        site.conduct.broken_setups += 1
        run.tell(RunEventKind.COMPLAINT, site.name, "set-up-broken")
        if site.conduct.broken_setups >= MOST_BROKEN_SETUPS and not site.left_out:
            run.leave_out(site, "set-ups-broken")
