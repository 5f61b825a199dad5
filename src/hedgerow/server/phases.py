"""What a run does in its phases: it sets epochs up, takes its rounds from the query to the release, and ends.

Everything is journalled before the messages that depend on it are queued.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from enum import Enum

import numpy as np

from hedgerow.codec import HASH_BYTES
from hedgerow.crypto import KEY_BYTES
from hedgerow.errors import AggregationError, HedgerowError, ModelError, PlanError, PrivacyError, RemoteProtocolError
from hedgerow.evaluation.estimates import Evaluation
from hedgerow.methods.tasks import SurveyTask, Task, TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.calibration import noise_of
from hedgerow.protocol.messages import Abandoned, MessageKind, Payload, RunState, Stop
from hedgerow.protocol.queries import NoiseCohort, Query
from hedgerow.protocol.stream import Salvage
from hedgerow.rounds import VECTOR_ID, mode_of, release_bound, require_words, round_in, rows_of
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.enrolment import EpochSetup
from hedgerow.secagg.guarantees import derive
from hedgerow.secagg.masks import LEAST_COLLUDERS, WIDTHS, wrapped
from hedgerow.secagg.messages import MAX_ATTEMPTS, EchoCertificate, EpochParameters, NoiseMode, RoundSpec, manifest_hash
from hedgerow.secagg.session import default_wishes
from hedgerow.secagg.transitions import Abandoned as SumAbandoned
from hedgerow.secagg.transitions import Code, State, refuse
from hedgerow.secagg.view import Cohort, EpochView
from hedgerow.server.release import Outcome, Releaser, Summed, checked_report, require_plausible
from hedgerow.server.run import (
    MOST_BROKEN_SETUPS,
    MOST_LOST_EPOCHS,
    Asked,
    BurntSlot,
    JournalledRelease,
    Place,
    Run,
    RunEventKind,
    SiteRecord,
)
from hedgerow.survey.open_plans import Found
from hedgerow.training.settings import Settings
from hedgerow.trees.binning import build_grid
from hedgerow.trees.ensemble import no_trees

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


def members_of_next(run: Run) -> set[str]:
    """The sites that take part in a set-up that begins now; none, where they would not mask the next query there.

    A node masks no round in two epochs of which both sums could be opened. Where a slot of the next query was given
    up after vectors of it had come, an epoch without those who came since may do.
    """
    members, least = run.sites.agreeing(), run.sites.least
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
    there = run.sites.agreeing()
    if len(there) < run.sites.least or members_of_next(run):
        return run.sites.too_few()
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
    while len(members) < run.sites.least:
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
    except (SumAbandoned, RemoteProtocolError) as fault:
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
            site.place = Place.INSIDE
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


_SURELY_FEW = 2**30
"""Rows, times sites, whose sums fit 64 bits: no record adds as much as 2^24 units to an entry."""
COLLECTIONS = {
    State.COLLECTING_VECTORS: RunState.COLLECTING_VECTORS,
    State.COLLECTING_ECHOES: RunState.COLLECTING_ECHOES,
    State.COLLECTING_ANSWERS: RunState.COLLECTING_ANSWERS,
}
"""What a run collects while an aggregator is in a state."""
RELEASES_BYTES = 63 << 20
"""All releases of a run, or a model, in a message of at most 64 MiB; what is left is for a spec or a plan."""
RELEASE_HEAD_BYTES = 5
"""What a release takes in a message beside its entries."""
_MORE_SHARES_MAY_HELP = {Code.TOO_FEW_ANSWERS, Code.SECRET_UNRECOVERABLE}


class Following(Enum):
    """What the coordinator does next when no slot is open."""

    SLOT = "open a slot"
    EPOCH = "set a new epoch up"
    WAIT = "wait for sites"
    END = "finish"
    NOTHING = "no epoch is ready"


# From a query to its slot ------------------------------------------------------------------------------------------


def cohort_of(plan: Plan, view: EpochView) -> NoiseCohort | None:
    """The sites that add the noise in an epoch; None when they add none."""
    if mode_of(plan) is not NoiseMode.DISTRIBUTED:
        return None
    promised = view.guarantees
    return NoiseCohort(promised.n_nodes, promised.n_colluders, promised.honest_group)


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


def check_releases(task: Task, n_sites: int) -> None:
    """Raise an error when all releases of a training, or the model of an evaluation, might not fit one message.

    A site that holds no release, for it came late or has lost its state, is sent all at once. Asked before anyone is
    invited, as `check_words`.

    Raises:
        PlanError: code "plan-releases-too-long".
        ModelError: code "model-too-long-to-send". An evaluation itself has two releases, of a few curves.
    """
    if isinstance(task, SurveyTask):
        _require_sendable(task.asked.n_released, WIDTHS[-1] // 8, task.n_exchanges)
        return
    if not isinstance(task, TrainingTask):
        if len(task.model) > RELEASES_BYTES:
            raise ModelError("model-too-long-to-send", megabytes=-(-len(task.model) >> 20), most=RELEASES_BYTES >> 20)
        return
    plan, settings = task.plan, task.settings
    entries, n_bytes = settings.n_released(plan), WIDTHS[-1] // 8
    if plan.model.algorithm == "boosting":
        n_bytes = min(n_bytes, _bytes_of_an_entry(plan, settings, n_sites))
    _require_sendable(entries, n_bytes, task.n_exchanges)


def _require_sendable(entries: int, n_bytes: int, n_exchanges: int) -> None:
    """Raises PlanError (code "plan-releases-too-long") for more entries of so many bytes than a message holds."""
    size = entries * n_bytes + RELEASE_HEAD_BYTES * n_exchanges
    if size > RELEASES_BYTES:
        raise PlanError(
            "plan-releases-too-long",
            entries=entries,
            n_bytes=n_bytes,
            megabytes=-(-size >> 20),
            most=RELEASES_BYTES >> 20,
        )


def _bytes_of_an_entry(plan: Plan, settings: Settings, n_sites: int) -> int:
    """What no entry of a release of boosted trees exceeds, for it would be refused as out of range, in bytes.

    Records have the largest norm there, and so the most noise.
    """
    loss, rows = settings.loss(plan), plan.privacy.rows_per_unit
    widest = Query(
        purpose=Query.purpose_of(0, "any"),
        length=1,
        bound=loss.bound(),
        sensitivity_squared=loss.norm_squared * rows * rows,
        noise_multiplier=settings.noise_multiplier,
    )
    noise = noise_of(widest, is_local=plan.privacy.noise == "local")
    # Twice as much, for every share of the sites' noise is rounded up.
    return 1 + (2 * release_bound(widest, plan, noise.variance, n_sites)).bit_length() // 8


def certificate_of(slot: Aggregator) -> bytes:
    """The echo certificate of a slot that was brought back from the journal; empty when none was sent."""
    if slot.state is not State.COLLECTING_ANSWERS or not slot.echoes:
        return b""
    nodes = tuple(sorted(slot.echoes))
    return EchoCertificate(manifest_hash(slot.manifest), nodes, tuple(slot.echoes[node] for node in nodes)).to_bytes()


def open_round(run: Run, released: JournalledRelease | None = None) -> None:
    """Open a slot for the query that is next; stall when too few sites are there for any.

    Args:
        released: what was released before it, to be journalled with the slot, or with the end of the run, before a site
            hears of either.
    """
    following, there = _following(run)
    slot = _new_slot(run) if following is Following.SLOT else None
    digest = _result_digest(run) if following is Following.END else None
    run.journal.commit(released, slot, digest)
    if released is not None:
        run.tell(RunEventKind.RELEASED)
    if slot is not None:
        run.slot, run.certificate = slot, b""
        run.next_slot += 1
        run.sites.begin_slot()
        run.enter(RunState.COLLECTING_VECTORS)
        for site in there:
            run.send_request(site)
    elif following is Following.END:
        _begin_finishing(run)
    elif following is Following.EPOCH:
        begin_setup(run)
    elif following is Following.WAIT:
        run.stall()


def _following(run: Run) -> tuple[Following, list[SiteRecord]]:
    """What comes after a release or a set-up, and the sites of the epoch that are there."""
    view, sites = run.view, run.sites
    if run.replica.query is None:
        return Following.END, []
    if view is None:
        return Following.NOTHING, []
    present = [site for site in sites if site.is_inside and site.is_heard]
    if sites.is_any_returning:
        return Following.WAIT, present
    there = {site.name for site in present}
    is_full, is_short = run.next_slot >= view.parameters.n_slots, len(there) < view.guarantees.min_survivors
    ready = members_of_next(run)
    comes_back = {name for name in ready - there if sites[name].conduct.lost_epochs >= MOST_LOST_EPOCHS}
    # Not `ready > there`: a site that is there, and is taken into no further epoch, keeps none out.
    is_worth_it = bool(sites.agreeing() - there) and is_short
    is_worth_it |= bool(ready - there - comes_back) and run.attempt < MAX_ATTEMPTS // 2
    if len(ready) >= sites.least and (is_full or is_worth_it):
        # An epoch takes no site in: those who came later, or lost their state, join in a new one.
        return Following.EPOCH, present
    return (Following.WAIT if is_short or is_full else Following.SLOT), present


def _new_slot(run: Run) -> Aggregator | None:
    """The aggregator of the next query's slot."""
    query, view = run.replica.query, run.view
    if query is None or view is None:
        return None
    _, expected = round_in(query, run.plan, view.guarantees, run.replica.context())
    spec = RoundSpec(view.digest, run.next_slot, expected.purpose, expected.model, expected.vectors, expected.noise)
    return Aggregator.open(view, run.setup.identity, spec)


# From the slot to a release ----------------------------------------------------------------------------------------


def close_vectors(run: Run) -> None:
    """Sign the manifest of the vectors that came, and ask for what opens their sum; or burn the slot."""
    slot = run.open_slot()
    first = slot.openers(run.survivors_heard())
    try:
        slot, requests = slot.close_vectors(run.setup.identity, first)
    except SumAbandoned as fault:
        _burn(run, slot, fault)
        return
    run.journal.commit(following=slot)
    run.slot = slot
    for site in run.sites:
        site.opening = Asked.NO
    run.enter(COLLECTIONS[slot.state])
    run.ask_openers(requests)


def _burn(run: Run, slot: Aggregator, fault: SumAbandoned) -> None:
    """Give a slot up: no manifest was sent, so nothing of it can ever be opened, and its purpose may have another."""
    n_released = run.replica.n_releases
    burnt = BurntSlot(n_released, Cohort.of(slot.view), frozenset(slot.uploads))
    run.journal.burn_slot(burnt)
    run.burnt.append(burnt)
    for site in run.sites:
        # A site that was asked for its vector has used up its time, gone or not.
        is_lacking = site.spec is not Asked.NO and site.node not in slot.uploads
        if is_lacking and not site.is_silent and not site.left_out:
            run.count_timeout(site)
    run.slot = None
    run.tell(RunEventKind.ABANDONED, code=fault.code)
    run.send_to_connected(Abandoned(n_released, fault.code))
    run.stall()
    open_round(run)


def close_echoes(run: Run) -> None:
    """Send the certificate of the echoes; wait for sites when there are too few."""
    try:
        slot, certificate = run.open_slot().close_echoes()
    except SumAbandoned:
        run.stall()
        return
    run.journal.commit(following=slot)
    run.slot, run.certificate = slot, certificate
    run.enter(RunState.COLLECTING_ANSWERS)
    for site in run.sites:
        # A site that has lost its state was invited again: it has no slot that this could open.
        if site.is_inside and site.node in slot.uploads:
            run.send(site, Payload(MessageKind.CERTIFICATE, certificate))


def ask_others(run: Run) -> bool:
    """Ask the survivors that were not asked yet to help to open the sum; returns whether there were any."""
    others = {node: site for node, site in run.survivors_heard().items() if site.opening is not Asked.NOW}
    is_new = any(site.opening is Asked.NO for site in others.values())
    run.ask_openers(run.open_slot().requests(others))
    # A site that is asked for the first time has as long to answer as the others had. But no site puts the end of a run
    # off by leaving and coming back.
    run.n_phases += is_new and not run.is_stalled and not run.sites.is_any_returning
    return bool(others)


def keep_enough_openers(run: Run) -> None:
    """Ask all survivors for shares as soon as one of the fewest that were asked will not answer."""
    slot = run.slot
    if run.state is not RunState.COLLECTING_ANSWERS or slot is None:
        return
    asked = {node for node, site in run.survivors_heard().items() if site.opening is Asked.NOW}
    if len(asked.union(slot.answers)) < len(slot.openers(slot.uploads)):
        ask_others(run)


def release(run: Run) -> None:
    """Unmask, add the noise, journal, and only then go on: what follows may be seen."""
    slot, query = run.open_slot(), run.replica.query
    if query is None or run.view is None:
        return
    try:
        _, opened = slot.release()
    except SumAbandoned as fault:
        _wait_for_shares(run, slot, fault)
        return
    cohort = cohort_of(run.plan, run.view)
    releaser = Releaser(run.setup.noise, is_local=run.plan.privacy.noise == "local")
    released = releaser.release(query, opened.sums[VECTOR_ID], cohort)
    if not query.is_choice:
        released = wrapped(released, slot.spec.vectors[0].width)
    (entry,) = releaser.ledger.releases
    survivors = tuple(run.sites.name(node) for node in opened.survivors)
    line = JournalledRelease(released, entry, survivors)
    try:
        summed = Summed(cohort, run.view.guarantees.n_nodes, survivors)
        require_plausible(run.checks, query, run.plan, released, summed)
    except SumAbandoned as fault:
        # That the run ends is told to all, so what it follows from is a release like any other: it is written down
        # with its cost, and the run given up, in one write.
        if fault.reason is Code.SUM_OUT_OF_RANGE:
            fault.what += f" In the sum were {', '.join(survivors)}: the masks do not show whose vector it was."
        give_up(run, fault, line)
        return
    run.take(line)
    for name in survivors:
        run.sites[name].conduct.may_return = True
    run.slot = None
    open_round(run, line)


def _wait_for_shares(run: Run, slot: Aggregator, fault: SumAbandoned) -> None:
    """A sum did not open: ask the others, or wait, where more shares may help; else raise the fault."""
    if fault.reason not in _MORE_SHARES_MAY_HELP:
        raise fault
    # The same manifest is repeated to a site that returns; there is never a second one.
    if not ask_others(run):
        _judge_dealer(run, slot, fault)
        run.stall()


def _judge_dealer(run: Run, slot: Aggregator, fault: SumAbandoned) -> None:
    """Name the site to blame for a secret that cannot be rebuilt, and raise; or return, to wait for more shares.

    Shares that do not fit: with as many more than the threshold as there may be liars, some threshold of them are
    honest holders', so that only wrong dealing explains it. Shares that are withheld, for they did not open: when
    more withhold than there may be liars, an honest holder is among them. Otherwise it may be a holder who lies.
    """
    if not isinstance(fault.peer, int):
        raise fault
    dealer, guarantees = fault.peer, slot.view.guarantees
    holders = {node for node in slot.uploads if node == dealer or dealer in slot.view.peers(node)}
    given = {node for node in holders & slot.shares.keys() if slot.shares[node].get(dealer) is not None}
    withheld, left = slot.shares.keys() & holders - given - {dealer}, holders - slot.answers.keys()
    n_liars, is_wrong = max(1, guarantees.n_colluders), fault.reason is Code.SECRET_UNRECOVERABLE
    if not is_wrong and len(given | left) >= guarantees.threshold:
        return
    site = run.sites.of(dealer)
    if (is_wrong and len(given) >= guarantees.threshold + n_liars) or (not is_wrong and len(withheld) > n_liars):
        run.tell(RunEventKind.COMPLAINT, site.name, Code.SECRET_UNRECOVERABLE.value)
        run.leave_out(site, Code.SECRET_UNRECOVERABLE.value)
        raise refuse(Code.SECRET_UNRECOVERABLE, f"It is the secret of {site.name}, which dealt wrong shares.", dealer)
    if not left - {dealer}:
        others = ", ".join(run.sites.name(node) for node in sorted((given | withheld) - {dealer}))
        said = f"It is the secret of {site.name}: it dealt wrong shares, or one of {others} lies about them."
        raise refuse(Code.SECRET_UNRECOVERABLE, said, dealer)


# The end of a run --------------------------------------------------------------------------------------------------


def conclude(run: Run) -> Outcome:
    """The outcome; raises PrivacyError when the releases cost more than the plan allows."""
    model, replica, noise = run.setup.evaluation, run.replica, run.setup.noise
    if model is not None and isinstance(replica.result, Evaluation):
        run.outcome = model.outcome(run.ledger, replica.result, noise)
    elif isinstance(replica.result, Found):
        report = checked_report(run.plan, run.ledger, noise)
        nothing = no_trees(run.plan, build_grid(run.plan))
        run.outcome = Outcome(run.plan, nothing, run.ledger, report, findings=replica.result)
    else:
        report = checked_report(run.plan, run.ledger, noise)
        run.outcome = Outcome(replica.plan, replica.ensemble, run.ledger, report, salvaged=run.salvaged)
    return run.outcome


def end(run: Run) -> None:
    """The run is over, and has made what it was for."""
    conclude(run)
    run.enter(RunState.OVER)
    run.tell(RunEventKind.FINISHED)


def give_up(run: Run, fault: HedgerowError, unused: JournalledRelease | None = None) -> None:
    """End the run by name: with the model of what was released, if that may be salvaged, or without.

    A run whose result is in the journal is only stopped.

    Args:
        unused: a release that the program does not go on from; it is written down with its cost, in the same write.
    """
    if run.state is RunState.FINISHING:
        # The result is in the journal, and sites may have it: started again, the run comes to its end from there.
        run.failure = fault
        run.enter(RunState.OVER)
        run.tell(RunEventKind.STOPPED, code=fault.code)
        return
    n_released = len(run.releases)
    if unused is not None:
        run.ledger = run.ledger.append(unused.entry)
    if _can_salvage(run, fault):
        run.salvaged = Salvage(fault.code, n_released, run.task.n_exchanges)
        with suppress(PrivacyError):
            digest = _result_digest(run)
            run.journal.commit(unused, None, digest, run.salvaged)
            run.slot, run.epoch_setup, run.setback = None, None, fault
            run.tell(RunEventKind.SALVAGED, code=fault.code)
            _begin_finishing(run)
            return
        run.salvaged = None
    run.failure = fault
    run.journal.commit(unused, given_up=fault.code)
    run.send_to_connected(Stop(fault.code))
    run.enter(RunState.OVER)
    run.tell(RunEventKind.STOPPED, code=fault.code)


def _can_salvage(run: Run, fault: HedgerowError) -> bool:
    """Whether the run may end with the model of its releases; then its program has ended, and there is one.

    Where several sites say that they have answered what this journal does not know of, its ledger would say less
    than was released.
    """
    may = run.setup.plan.federation.salvage and isinstance(fault, AggregationError)
    return may and not run.sites.is_journal_doubted and run.replica.end_early()


def _result_digest(run: Run) -> bytes:
    """What tells the result of the run; raises PrivacyError when there may be none."""
    conclude(run)
    return run.replica.result_digest()


def _begin_finishing(run: Run) -> None:
    run.enter(RunState.FINISHING)
    run.sites.begin_slot()
    for site in run.sites:
        # A site that was left out has rows in the model, and may have it.
        if site.is_ready and site.is_there:
            run.send_finished(site)
