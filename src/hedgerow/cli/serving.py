"""What every command of the coordinator does: listen, carry a run out over the nodes of a roster, say how it is."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hedgerow.cli.coordinator_status import published
from hedgerow.cli.federation_inputs import address_of, signing_key, signing_roster
from hedgerow.cli.inputs import check_can_write
from hedgerow.cli.output import note
from hedgerow.dress_rehearsal import rehearse_run
from hedgerow.memory import settle_memory
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.errors import UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.server.coordinator import Outcome
from hedgerow.server.evaluation import EvaluatedModel
from hedgerow.server.events import RunEvent, RunEventKind
from hedgerow.server.journal import Journal
from hedgerow.server.run import run_coordinator
from hedgerow.server.run_setup import RunSetup
from hedgerow.server.session import RunSession
from hedgerow.server.status import RunBoard
from hedgerow.training.tasks import TrainingTask
from hedgerow.transport.grpc_core import allow_many_connections
from hedgerow.transport.grpc_hub import GrpcHub, HubAddress
from hedgerow.transport.grpc_monitor import Monitors
from hedgerow.transport.identity_files import read_private
from hedgerow.transport.roster_file import PinnedRoster, read_roster

_SAID = {
    RunEventKind.JOINED: "is connected",
    RunEventKind.LEFT: "is gone",
    RunEventKind.READY: "is ready",
    RunEventKind.REFUSED: "refuses",
    RunEventKind.SILENT: "does not answer",
    RunEventKind.COMPLAINT: "sent what cannot be used",
}
_SECONDS_BETWEEN_LINES = 5.0


class RunLines:
    """Says on stderr what happens: every site's coming and going, and now and then how far the run is."""

    def __init__(self, n_rounds: int, *, quiet: bool) -> None:
        self._n_rounds, self._quiet = n_rounds, quiet
        self._last = float("-inf")

    def __call__(self, event: RunEvent) -> None:
        """Take note of an event."""
        if self._quiet:
            return
        if event.kind in _SAID:
            why = f" ({event.code})" if event.code else ""
            self._say(f"{event.site} {_SAID[event.kind]}{why}")
        elif event.kind is RunEventKind.ABANDONED:
            self._say(f"round {event.round + 1}: begun anew ({event.code})")
        elif event.kind is RunEventKind.RELEASED:
            now = time.monotonic()
            if now - self._last >= _SECONDS_BETWEEN_LINES or event.round >= self._n_rounds:
                self._last = now
                self._say(f"round {event.round} of {self._n_rounds} released")

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def serve(
    arguments: argparse.Namespace, plan: Plan, noise: NoiseSource, journal_file: Path, model: EvaluatedModel | None
) -> tuple[Outcome, RunSession, PinnedRoster]:
    """Wait for the sites and carry the run out.

    Args:
        arguments: `roster`, `identity`, `listen`, `metrics` and `json` of the command line.
        plan: of the run; `model`'s own when a model is evaluated.
        noise: for the releases.
        journal_file: where the run is journalled.
        model: to be evaluated; None trains one.

    Raises:
        HedgerowError: why the run was given up.
    """
    require_masks(plan)
    pinned = read_roster(Path(arguments.roster))
    identity = read_private(Path(arguments.identity))
    address = HubAddress(*address_of(arguments.listen, "--listen"))
    task = TrainingTask(plan) if model is None else model.task
    lines = RunLines(task.n_exchanges, quiet=arguments.json)
    board = RunBoard(task, [site.name for site in pinned.sites], task.n_exchanges, time.monotonic, os.urandom(8))

    def watch(event: RunEvent) -> None:
        board(event)
        lines(event)

    setup = RunSetup(plan, signing_roster(pinned), signing_key(identity), noise, os.urandom, watch, model)
    if model is None:
        rehearse_run(plan)
    settle_memory()
    allow_many_connections()
    journal = Journal(check_can_write(str(journal_file)))
    try:
        session = RunSession(setup, journal)
        board.attach(session)
        monitors = Monitors(pinned)
        # A node may hold the plan as it was before its seed was drawn; what it makes of a model's, it says itself.
        digest = bytes.fromhex(plan.digest) if model is None else b""
        hub = GrpcHub(identity, pinned, address, plan_digest=digest, monitors=monitors)
        try:
            if not arguments.json:
                note(f"Listening on {HubAddress(address.host, hub.port)} for {len(pinned.sites)} sites.")
            with published(board, hub, monitors, arguments.metrics):
                outcome = run_coordinator(session, hub, plan.federation, time.monotonic)
        finally:
            hub.close()
    finally:
        journal.close()
    return outcome, session, pinned


def require_masks(plan: Plan) -> None:
    """Raises UsageError for a plan of sums in the clear."""
    if not plan.federation.secure_aggregation:
        raise UsageError(
            "The plan asks for sums in the clear (federation.secure_aggregation = false).",
            cause="That is for experiments in one process; over a network every sum is masked.",
            remedy="Set federation.secure_aggregation to true, or leave it out.",
            code="clear-sums",
        )
