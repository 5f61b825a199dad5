"""``hedgerow coordinator``: run a plan over the nodes of a roster, and write the model."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from hedgerow.cli.coordinator_status import published
from hedgerow.cli.federation_inputs import address_of, signing_key, signing_roster
from hedgerow.cli.inputs import check_can_write, listed, read_plan
from hedgerow.cli.output import note, print_facts, print_json, warn, wrapped
from hedgerow.forecasting import forecast
from hedgerow.model import Model
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.protocol.errors import UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.server.events import RunEvent, RunEventKind
from hedgerow.server.journal import Journal
from hedgerow.server.phases import RunSetup
from hedgerow.server.run import run_coordinator
from hedgerow.server.session import RunSession
from hedgerow.server.status import RunBoard
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


def run(arguments: argparse.Namespace) -> None:
    """Wait for the sites, run, write the model, print what it promises."""
    plan = read_plan(arguments.plan)
    _require_masks(plan)
    out = check_can_write(arguments.out)
    pinned = read_roster(Path(arguments.roster))
    identity = read_private(Path(arguments.identity))
    address = HubAddress(*address_of(arguments.listen, "--listen"))
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    journal_file = check_can_write(arguments.journal or f"{out}.journal")
    n_rounds = forecast(plan).n_exchanges
    lines = RunLines(n_rounds, quiet=arguments.json)
    board = RunBoard(plan, [site.name for site in pinned.sites], n_rounds, time.monotonic, os.urandom(8))

    def watch(event: RunEvent) -> None:
        board(event)
        lines(event)

    journal = Journal(journal_file)
    try:
        setup = RunSetup(plan, signing_roster(pinned), signing_key(identity), noise, os.urandom, watch)
        session = RunSession(setup, journal)
        board.attach(session)
        monitors = Monitors(pinned)
        hub = GrpcHub(identity, pinned, address, plan_digest=bytes.fromhex(plan.digest), monitors=monitors)
        try:
            if not arguments.json:
                note(f"Listening on {HubAddress(address.host, hub.port)} for {len(pinned.sites)} sites.")
            with published(board, hub, monitors, arguments.metrics):
                outcome = run_coordinator(session, hub, plan.federation, time.monotonic)
        finally:
            hub.close()
    finally:
        journal.close()
    model = Model(outcome.plan, outcome.ensemble, outcome.ledger, outcome.report)
    model.save(out)
    _print(model, session, pinned, arguments, out)


def _print(model: Model, session: RunSession, pinned: PinnedRoster, arguments: argparse.Namespace, out: Path) -> None:
    together = sorted({site for survivors in session.survivors for site in survivors})
    if arguments.json:
        content = {
            "model": str(out),
            "plan_digest": model.plan.digest,
            "run_id": session.run_id.hex(),
            "sites": together,
            "sites_per_round": [len(survivors) for survivors in session.survivors],
            "refusals": session.sites.refusals,
            "report": model.report.to_dict(),
        }
        print_json(content)
        return
    if model.report.seeded:
        warn("The noise comes from a seed, so whoever knows it can remove it. For experiments only.")
    print_facts(
        [
            ("sites", f"{len(together)} of {len(pinned.sites)}: {listed(together)}"),
            ("rounds", f"{len(session.survivors)}, the smallest of {_smallest(session)} sites"),
            ("model", f"{model.ensemble.n_trees} trees, written to {out}"),
        ]
    )
    print("\n" + wrapped(model.report.text()))


def _smallest(session: RunSession) -> int:
    return min(map(len, session.survivors), default=0)


def _require_masks(plan: Plan) -> None:
    if not plan.federation.secure_aggregation:
        raise UsageError(
            "The plan asks for sums in the clear (federation.secure_aggregation = false).",
            cause="That is for experiments in one process; over a network every sum is masked.",
            remedy="Set federation.secure_aggregation to true, or leave it out.",
            code="clear-sums",
        )
