"""A coordinator's run over Flower, from its `coordinator.toml`: loop, journal, monitor and model as everywhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hedgerow.cli.coordinator_status import published
from hedgerow.cli.federation_inputs import address_of, signing_key, signing_roster
from hedgerow.cli.inputs import check_can_write, read_plan
from hedgerow.cli.output import note
from hedgerow.cli.serving import RunLines
from hedgerow.flower.files import CoordinatorFile
from hedgerow.forecasting import forecast
from hedgerow.model import Model
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.protocol.plan import Plan
from hedgerow.protocol.run_messages import Invitation, MessageKind, encode
from hedgerow.server.events import RunEvent
from hedgerow.server.journal import Journal
from hedgerow.server.phases import RunSetup
from hedgerow.server.run import run_coordinator
from hedgerow.server.session import RunSession
from hedgerow.server.status import RunBoard
from hedgerow.transport.flower_hub import Clock, FlowerHub, Patience, Post
from hedgerow.transport.identity import PrivateIdentity
from hedgerow.transport.identity_files import read_private
from hedgerow.transport.roster_file import PinnedRoster, read_roster

_KIND_AT = 4
_MAY_WAIT = {MessageKind.WELCOME, MessageKind.ABANDONED}


def coordinate(file: CoordinatorFile, post: Post, patience: Patience | None = None) -> tuple[Model, FlowerHub]:
    """Carry the run out and write the model; the hub is closed, and knows what the run has sent.

    Raises:
        HedgerowError: as `run_coordinator`; the journal keeps what was released, and started again the run goes on.
    """
    plan, out = read_plan(file.plan), check_can_write(file.out)
    identity, pinned = read_private(Path(file.identity)), read_roster(Path(file.roster))
    noise: NoiseSource = SystemNoise(os.urandom) if file.seed < 0 else SeededNoise(file.seed)
    n_rounds = forecast(plan).n_exchanges
    lines = RunLines(n_rounds, quiet=False)
    board = RunBoard(plan, [site.name for site in pinned.sites], n_rounds, time.monotonic, os.urandom(8))

    def watch(event: RunEvent) -> None:
        board(event)
        lines(event)

    journal = Journal(check_can_write(file.journal or f"{out}.journal"))
    try:
        setup = RunSetup(plan, signing_roster(pinned), signing_key(identity), noise, os.urandom, watch)
        session = RunSession(setup, journal)
        board.attach(session)
        hub = make_hub(session, plan, (identity, pinned), post, patience)
        try:
            with watched(file, board, hub, (identity, pinned)):
                outcome = run_coordinator(session, hub, plan.federation, time.monotonic)
        finally:
            hub.close()
    finally:
        journal.close()
    model = Model(plan, outcome.ensemble, outcome.ledger, outcome.report)
    model.save(out)
    note(f"{model.ensemble.n_trees} trees, {len(session.survivors)} rounds, written to {out}.")
    note(f"Requests to a site: {max(hub.n_requests.values(), default=0)} at most.")
    return model, hub


def make_hub(
    session: RunSession, plan: Plan, keys: tuple[PrivateIdentity, PinnedRoster], post: Post, patience: Patience | None
) -> FlowerHub:
    """The hub of a run. Its greeting invites, and what needs no answer waits for the next message: fewer exchanges."""
    text = json.dumps(plan.to_dict(), sort_keys=True, separators=(",", ":"))
    invitation = encode(Invitation(session.run_id, text.encode()))

    def needs_reply(site: str, messages: Sequence[bytes]) -> bool:
        is_ready = site in session.sites.ready
        kinds = {MessageKind(message[_KIND_AT]) for message in messages} - _MAY_WAIT
        # A site that was invited by its greeting and has said that it is ready need not be asked again.
        return bool(kinds - {MessageKind.INVITATION}) or (MessageKind.INVITATION in kinds and not is_ready)

    clock = Clock(time.monotonic, time.sleep, os.urandom)
    return FlowerHub(*keys, post, clock, lambda: [invitation], needs_reply, patience)


@contextmanager
def watched(
    file: CoordinatorFile, board: RunBoard, hub: FlowerHub, keys: tuple[PrivateIdentity, PinnedRoster]
) -> Iterator[None]:
    """Let the roster's monitors watch, if the file says where."""
    if not file.monitor:
        yield
        return
    # The monitors' streams are gRPC's: only a coordinator that is watched needs the extra.
    from hedgerow.transport.grpc_hub import HubAddress
    from hedgerow.transport.grpc_monitor import Monitors
    from hedgerow.transport.grpc_monitor_server import MonitorServer

    monitors = Monitors(keys[1])
    server = MonitorServer(*keys, HubAddress(*address_of(file.monitor, "monitor")), monitors)
    try:
        note(f"Monitors may watch on port {server.port}.")
        with published(board, hub, monitors, None):
            yield
    finally:
        server.close()

