"""A coordinator's run over Flower, from its `coordinator.toml`: loop, journal, monitor and model as everywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hedgerow.cli.coordinator import ModelFile, carry_out, published, require_masks
from hedgerow.cli.evaluate import content_of, found_by, journal_of, print_evaluation, sites_of, to_be_evaluated
from hedgerow.cli.inputs import address_of, check_can_write, read_plan
from hedgerow.cli.output import end_log, json_text, note, warn
from hedgerow.flower.files import CoordinatorFile
from hedgerow.flower.hub import Clock, FlowerHub, Patience, Post
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.protocol.messages import MessageKind, encode
from hedgerow.server.coordinator import RunSession
from hedgerow.server.release import EvaluatedModel, Outcome
from hedgerow.server.run import invitation_to
from hedgerow.server.status import RunBoard
from hedgerow.transport.identities import PinnedRoster, PrivateIdentity, read_private, read_roster
from hedgerow.transport.interface import Hub

_KIND_AT = 4
_MAY_WAIT = {MessageKind.WELCOME, MessageKind.ABANDONED}
_INVITATIONS = {MessageKind.INVITATION, MessageKind.EVALUATION}


@dataclass(frozen=True)
class Errand:
    """What a coordinator's file asks for. Args: model: to be evaluated; None to train one by `plan`."""

    file: CoordinatorFile
    plan: Plan
    model: Model | None

    @classmethod
    def of(cls, file: CoordinatorFile) -> Errand:
        """Read the plan, or the model; raises PlanError, ModelError, UsageError."""
        model = Model.load(file.model) if file.model else None
        plan = read_plan(file.plan) if model is None else model.plan
        require_masks(plan)
        return cls(file, plan, model)

    def evaluated(self) -> EvaluatedModel | None:
        """What an evaluation's session is given."""
        return None if self.model is None else _evaluated_by(self.model, self.file)

    def journal(self) -> Path:
        """Where the run is journalled."""
        usual = f"{self.file.out}.journal" if self.model is None else journal_of(self.file.out, self.model)
        return check_can_write(self.file.journal or usual)

    def conclude(self, outcome: Outcome, session: RunSession, place: ModelFile) -> Model:
        """Write the model, say what came of the run."""
        out = place.path
        if self.model is None:
            model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report, salvaged=outcome.salvaged)
            place.save(model)
            if model.salvaged is not None:
                warn(f"{model.salvaged.text()}{'' if session.run.setback is None else f' {session.run.setback}'}")
            note(f"{model.ensemble.n_trees} trees, {len(session.run.survivors)} rounds, written to {out}.")
            return model
        found, sites = found_by(outcome, self.model), sites_of(session)
        # The account goes first: numbers that were seen but not charged would be a leak.
        place.save(found.model)
        print_evaluation(found, sites, out, None)
        if self.file.scores:
            content = json_text(content_of(found, sites, out, None))
            check_can_write(self.file.scores).write_text(content + "\n", encoding="utf-8")
        return found.model


def _evaluated_by(model: Model, file: CoordinatorFile) -> EvaluatedModel:
    return to_be_evaluated(model, file.epsilon, file.delta or None, file.noise)


def coordinate(file: CoordinatorFile, post: Post, patience: Patience | None = None) -> tuple[Model, FlowerHub]:
    """Carry the run out and write the model; the hub is closed, and knows what the run has sent.

    Raises:
        HedgerowError: as `run_coordinator`; the journal keeps what was released, and started again the run goes on.
    """
    errand, out = Errand.of(file), check_can_write(file.out)
    keys = read_private(Path(file.identity)), read_roster(Path(file.roster))
    noise: NoiseSource = SystemNoise(os.urandom) if file.seed < 0 else SeededNoise(file.seed)
    place, hubs = ModelFile(out, errand.model, errand.journal()), list[FlowerHub]()

    @contextmanager
    def asking(session: RunSession, board: RunBoard) -> Iterator[Hub]:
        hubs.append(make_hub(session, keys, post, patience))
        try:
            with watched(file, board, hubs[0], keys):
                yield hubs[0]
        finally:
            hubs[0].close()

    try:
        outcome, session = carry_out(keys, errand.plan, noise, place, errand.evaluated(), asking)
        written = errand.conclude(outcome, session, place)
        note(f"Requests to a site: {max(hubs[0].n_requests.values(), default=0)} at most.")
    finally:
        end_log()
    return written, hubs[0]


def make_hub(
    session: RunSession, keys: tuple[PrivateIdentity, PinnedRoster], post: Post, patience: Patience | None
) -> FlowerHub:
    """The hub of a run. Its greeting invites, and what needs no answer waits for the next message: fewer exchanges.

    A greeting travels in the open. A plan may; a model that is evaluated comes, sealed, with the message after it.
    """
    task = session.run.task
    greeting = [encode(invitation_to(task, session.run.run_id))] if isinstance(task, TrainingTask) else []

    def needs_reply(site: str, messages: Sequence[bytes]) -> bool:
        is_ready = session.run.sites[site].is_ready
        kinds = {MessageKind(message[_KIND_AT]) for message in messages} - _MAY_WAIT
        # A site that was invited by its greeting and has said that it is ready need not be asked again.
        return bool(kinds - _INVITATIONS) or (bool(kinds & _INVITATIONS) and not is_ready)

    clock = Clock(time.monotonic, time.sleep, os.urandom)
    return FlowerHub(*keys, post, clock, lambda: greeting, needs_reply, patience)


@contextmanager
def watched(
    file: CoordinatorFile, board: RunBoard, hub: FlowerHub, keys: tuple[PrivateIdentity, PinnedRoster]
) -> Iterator[None]:
    """Let the roster's monitors watch, if the file says where."""
    if not file.monitor:
        yield
        return
    # The monitors' streams are gRPC's: only a coordinator that is watched needs the extra.
    from hedgerow.transport.grpc_hub import HubAddress, Monitors, MonitorServer

    monitors = Monitors(keys[1])
    server = MonitorServer(*keys, HubAddress(*address_of(file.monitor, "monitor")), monitors)
    try:
        note(f"Monitors may watch on port {server.port}.")
        with published(board, hub, monitors, None):
            yield
    finally:
        server.close()
