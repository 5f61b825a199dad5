# SPDX-License-Identifier: Apache-2.0
"""A run from `coordinator.toml` over whatever carries envelopes.

Loop, journal, monitor and model are as everywhere; the hub is `transport.carrier.EnvelopeHub`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hedgerow.app.coordinator import ModelFile, build_model, carry_out, require_masks
from hedgerow.app.evaluation import (
    conclude_evaluation,
    describe_evaluation,
    journal_file,
    prepare_evaluation,
    print_evaluation,
)
from hedgerow.app.inputs import check_can_write, read_plan
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import end_log, json_text, note, warn
from hedgerow.app.progress import list_contributors
from hedgerow.codec import kind_in
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model, write_atomically
from hedgerow.privacy.noise import make_noise
from hedgerow.privacy.statement import MIXED
from hedgerow.protocol.messages import MessageKind, encode
from hedgerow.server.coordinator import RunSession, anticipate_setup, invitation_to
from hedgerow.server.status import RunBoard
from hedgerow.transport.carrier import Carrier, Clock, EnvelopeHub, JointHub, Patience, Waiting
from hedgerow.transport.connections import allow_many_connections
from hedgerow.transport.engines import HUBS
from hedgerow.transport.identities import read_private, read_roster
from hedgerow.transport.interface import Address, Hub

_MAY_WAIT = {MessageKind.WELCOME, MessageKind.ABANDONED}
_INVITATIONS = {MessageKind.INVITATION, MessageKind.EVALUATION}


def coordinate(
    file: CoordinatorOptions,
    carrier: Carrier,
    patience: Patience | None = None,
    clock: Clock | None = None,
    *,
    quiet: bool = False,
) -> tuple[Model, EnvelopeHub]:
    """Carry out the run, write the model, and return it with the closed hub, which knows the traffic.

    Args:
        clock: of the run; None for this machine's.

    Raises:
        Waiting: the carrier's, while there is no result.
        HedgerowError: as `run_coordinator`; the journal keeps what was released, and started again the run goes on.
    """
    made_in = MIXED if file.listen else carrier.place
    model = Model.load(file.model) if file.model else None
    plan = read_plan(file.plan, is_own=True) if model is None else model.plan
    require_masks(plan)
    out = check_can_write(file.out)
    result = ModelFile(out, model, check_can_write(name_journal(file, model)), quiet=quiet, made_in=made_in)
    keys = read_private(Path(file.identity)), read_roster(Path(file.roster))
    asked = (file.epsilon, file.delta, file.noise, file.by, [site.name for site in keys[1].sites])
    about = None if model is None else prepare_evaluation(model, *asked)
    clock = clock or Clock(time.monotonic, time.sleep, os.urandom, time.time)
    noise = make_noise(None if file.seed == -1 else file.seed, clock.entropy)
    envelopes = EnvelopeHub(*keys, carrier, clock, patience)

    @contextmanager
    def asking(session: RunSession, board: RunBoard) -> Iterator[Hub]:
        is_known = set(carrier.nodes().values()) == {site.name for site in keys[1].sites}
        follow_run(envelopes, session, is_known=is_known)
        hub: Hub = envelopes
        if file.listen:
            allow_many_connections()
            address, digest = Address.parse(file.listen, "listen"), bytes.fromhex(plan.digest) if model is None else b""
            hub = JointHub(envelopes, HUBS["grpc"](*keys, address, digest, None))
        try:
            yield hub
        except Waiting:
            # With a result, the sites' acknowledgement of the end does not matter.
            if session.run.outcome is None:
                raise
        finally:
            hub.close()

    try:
        outcome, session = carry_out(keys, plan, noise, result, about, asking, entropy=clock.entropy, clock=clock.now)
        if model is None:
            written = build_model(outcome, session, made_in)
            if written.salvaged is not None:
                warn(f"{written.salvaged.text()}{'' if session.run.fault is None else f' {session.run.fault}'}")
            note(f"{written.ensemble.n_trees} trees, {len(session.run.survivors)} rounds, written to {out}.")
        else:
            found, sites = conclude_evaluation(outcome, model, made_in), list_contributors(session)
            written = found.model
            print_evaluation(found, sites, out, None)
            if file.scores:
                content = json_text(describe_evaluation(found, sites, out, None))
                write_atomically(check_can_write(file.scores), f"{content}\n".encode())
        note(f"Requests to a site: {max(envelopes.n_requests.values(), default=0)} at most.")
    finally:
        end_log()
    return written, envelopes


def name_journal(file: CoordinatorOptions, model: Model | None) -> str:
    """Return the path of a run's journal, for the training of a model or the evaluation of this one."""
    return file.journal or (f"{file.out}.journal" if model is None else journal_file(file.out, model))


def follow_run(hub: EnvelopeHub, session: RunSession, *, is_known: bool) -> None:
    """Let greetings carry invitations, and let messages that need no answer wait: fewer exchanges.

    A greeting travels in the open. A plan may; a model that is evaluated comes, sealed, with the message after it.

    Args:
        is_known: whether the carrier knows all sites from the beginning; the greeting begins the set-up then.
    """
    task = session.run.task

    def greet(is_first: bool) -> list[bytes]:
        if not isinstance(task, TrainingTask):
            return []
        ahead = anticipate_setup(session.run, is_first=is_first) if is_known else []
        return [encode(invitation_to(task, session.run.run_id)), *ahead]

    def needs_reply(site: str, messages: Sequence[bytes]) -> bool:
        is_ready = session.run.sites[site].is_ready
        kinds = {MessageKind(kind_in(message)) for message in messages} - _MAY_WAIT
        # A ready site was invited by its greeting, so a further invitation needs no reply.
        return bool(kinds - _INVITATIONS) or (bool(kinds & _INVITATIONS) and not is_ready)

    hub.greet, hub.needs_reply = greet, needs_reply
