"""A run's state is told once: heading, banner, log, page and monitor have the same names and numbers at any time;
and a coordinator that was started again waits for nobody whom it can do without.
"""

from __future__ import annotations

import io
import math
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hedgerow.app.coordinator import build_model
from hedgerow.app.monitor import MonitorView
from hedgerow.app.page import _Look, plan_facts
from hedgerow.app.watch import RunView, describe_wait, sentence
from hedgerow.errors import AggregationError
from hedgerow.models.model import Model
from hedgerow.protocol.messages import NodeState, RunState
from hedgerow.protocol.stream import WAITING, Update
from hedgerow.server import status
from hedgerow.server.coordinator import _RETURN_SECONDS, RunEvent, RunEventKind, count_needed
from hedgerow.server.sites import count_to_begin
from hedgerow.server.status import HubTraffic, RunBoard
from hedgerow.transport.grpc_link import DEFAULTS
from tests.builders import make_plan
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder, Federation

SITES = ("east", "north", "south", "west")
PHASES = [*(state.value for state in RunState), WAITING]
SITE_EVENTS = [
    RunEventKind.JOINED, RunEventKind.LEFT, RunEventKind.READY, RunEventKind.DEFERRED, RunEventKind.REFUSED,
    RunEventKind.SILENT, RunEventKind.LEFT_OUT, RunEventKind.TAKEN_BACK,
]  # fmt: skip
STEPS = st.one_of(
    st.tuples(st.sampled_from(SITE_EVENTS), st.sampled_from(SITES)),
    st.tuples(st.just(RunEventKind.PHASE), st.sampled_from(PHASES)),
    st.tuples(st.just("waits"), st.sets(st.sampled_from(SITES))),
    st.tuples(st.just("needs"), st.integers(0, 4)),
)
OF_NEEDED = re.compile(r"\((?:(\d+) more of|the) (\d+) needed")


def numbers(text: str) -> tuple[int, int] | None:
    """How many more of how many are needed, as a text says it; None where it says nothing of it."""
    found = OF_NEEDED.search(text)
    return None if found is None else (int(found[1] or 0), int(found[2]))


class Screens:
    """All that shows one run, at one moment."""

    def __init__(self) -> None:
        self.now = 0.0
        self.needed = 0
        # Who leaves while a run finishes may have answered its last question.
        self.sites = {site: SimpleNamespace(has_answered=site < "n") for site in SITES}
        self.board = RunBoard(make_plan("binary"), SITES, 9, lambda: self.now, b"process1")
        self.board._run = self  # type: ignore[assignment]
        self.page, self.monitor = RunView(), RunView()

    def look(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The log's words, and the page's and the monitor's state."""
        report = self.board.report(HubTraffic())
        self.page.patience = self.board.patience
        for view in (self.page, self.monitor):
            view.take(report, ())
        return describe_wait(self.board.wait()), self.page.state(), self.monitor.state()

    def draw(self) -> str:
        """The monitor's terminal."""
        drawn, terminal = MonitorView("hub:1", lambda: 0.0), io.StringIO()
        drawn.take(Update(self.board.report(HubTraffic())))
        Console(file=terminal, width=150, color_system=None).print(drawn.render(150, None))
        return terminal.getvalue()


@settings(max_examples=30)
@given(steps=st.lists(STEPS, max_size=15))
def test_every_screen_says_the_same(steps: list[tuple[Any, Any]]) -> None:
    """Whatever happened in whatever order. After a restart a heading, a banner and a log had three numbers of sites."""
    with pytest.MonkeyPatch.context() as patch:
        screens = Screens()
        patch.setattr(status, "count_needed", lambda run: run.needed)
        patch.setattr(RunBoard, "_end", lambda *_: None)
        for kind, what in steps:
            screens.now += 3.0
            if kind == "waits":
                screens.board.note_wait(60.0, what)
            elif kind == "needs":
                screens.needed = what
                screens.board.note_wait(60.0, ())
            elif kind is RunEventKind.PHASE:
                screens.board(RunEvent(kind, 0, code=what))
            else:
                is_left_out = kind is RunEventKind.LEFT_OUT
                screens.board(RunEvent(kind, 0, what, "timeouts-spent" if is_left_out else ""))
            log, page, monitor = screens.look()
            wait, phase = page["wait"], page["phase"].lower()
            is_over = page["is_over"]
            assert page["waiting"] == ("" if is_over else sentence(log))
            # The table of sites and the sentence count the same sites.
            listed = {site["name"]: site["state"] for site in page["sites"]}
            assert is_over or wait["ready"] == sum(state == "ready" for state in listed.values())
            assert is_over or wait["more"] == max(0, wait["needed"] - wait["ready"])
            if (said := numbers(page["waiting"])) is not None:
                assert said == (wait["more"], wait["needed"])
            assert ("too few" in phase) <= (wait["more"] > 0) and ("enough" in phase) <= (wait["more"] == 0)
            assert not re.search(r"\d", page["phase"])
            # Nobody is awaited who is there, has refused, or is asked no more, unless an answer of theirs is.
            if not screens.board.patience.awaited:
                assert all(listed[name] not in ("ready", "refused", "done") for name in wait["for"])
            # A monitor knows less, and nothing else.
            assert numbers(monitor["waiting"]) is None and monitor["sites"] == page["sites"]
            if not screens.board.patience.awaited:
                assert monitor["wait"]["for"] == wait["for"]
            assert phase.startswith(monitor["phase"].lower()) or "waiting for sites" in phase
        drawn = screens.draw()
        assert screens.look()[2]["phase"] in drawn and all(name in drawn for name in SITES)


def test_the_plan_on_the_page_has_the_number_that_the_run_needs(federate: Builder) -> None:
    """What stands beside the plan, what the log waits for, and what an error says are one number."""
    for n_sites in (3, 6):
        federation = federate(n_sites, make_plan(model={"structure_seed": "joint"}), name=f"of-{n_sites}")
        federation.run()
        plan, run = federation.plan, federation.session.run
        begins = count_to_begin(plan, n_sites)
        assert dict(plan_facts(plan, n_sites))["sites needed"].startswith(f"{begins} of {n_sites}")
        assert "sites needed" not in dict(plan_facts(plan))
        run.sites.draws_seed = True
        assert run.sites.least == begins
        federation.close()


def begun(federation: Federation, killed: type[BaseException], n_writes: int) -> None:
    with pytest.raises(killed):
        federation.run(kill_after=n_writes)


@pytest.mark.parametrize("n_gone", [1, 2])
@pytest.mark.parametrize("writes", every(5, range(6, 11)))
def test_a_restart_waits_for_a_site_beyond_need_no_longer_than_a_living_node_takes(
    federate: Builder, killed: type[BaseException], writes: int, n_gone: int
) -> None:
    """One of six sites is gone for good when the coordinator is started again: the five that the epoch needs go on.
    With two gone too few are there, and the coordinator waits as long as the plan says.
    """
    federation = federate(6, make_plan(model={"n_trees": 8}, privacy={"noise": "server"}))
    begun(federation, killed, writes)
    gone = sorted(federation.parties)[:n_gone]
    for name in gone:
        federation.parties[name].kill()
    began, limit = federation.now, federation.plan.federation.join_timeout
    assert limit > 2 * _RETURN_SECONDS
    if n_gone == 1:
        federation.run()
        assert federation.now - began < limit
        missed = [gone[0] not in survivors for survivors in federation.session.run.survivors]
        assert any(missed)
    else:
        outcome = federation.run()
        assert federation.now - began > limit
        assert outcome.salvaged is not None and outcome.salvaged.code == "too-few-sites"
        assert count_needed(federation.session.run) == 0


def test_a_living_node_dials_again_before_it_is_given_up() -> None:
    """Who pauses longest between two tries is still awaited."""
    assert _RETURN_SECONDS >= DEFAULTS.longest_backoff_seconds


def test_a_roster_that_can_begin_no_run_is_refused_before_anybody_is_awaited(federate: Builder) -> None:
    """A run of too few sites waited for ten minutes for sites that no roster had."""
    for n_sites, model in ((1, {}), (2, {}), (2, {"structure_seed": "joint"})):
        federation = federate(n_sites, make_plan(model=model), name=f"{n_sites}-{len(model)}", must_start=False)
        with pytest.raises(AggregationError) as caught:
            federation.run()
        assert caught.value.code == "too-few-sites" and federation.now == 0.0
        assert f" {n_sites} " in caught.value.what
        federation.close()


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("status", ["", "finished", "reserved", "stopped"])
def test_a_site_between_two_runs_is_told_that_all_is_well(state: NodeState, status: str) -> None:
    """No coordinator listens between two runs: that is a fault in a run, and none once the last one has finished."""
    session = SimpleNamespace(question=None, state=state, is_paused=False, progress=(0, 0))
    book = SimpleNamespace(lines=lambda _: [SimpleNamespace(status=status)] if status else [])
    look = _Look(session, None, book, SimpleNamespace(data_set="wards"))  # type: ignore[arg-type]
    look._again = math.inf
    found = look("The coordinator cannot be reached.", is_last=False)
    is_calm = state is NodeState.OUTSIDE and status == "finished"
    assert (found["phase"].startswith("No run") and found["mood"] == "good") == is_calm


@pytest.mark.parametrize("seed", ["joint", 7])
def test_a_coordinator_reports_a_model_as_its_file_does(federate: Builder, seed: str | int) -> None:
    """Reviewers compare digests: screen, page, file and sites name one plan, and the agreed one as the agreed one."""
    federation = federate(4, make_plan(model={"structure_seed": seed}))
    outcome = federation.run()
    model = build_model(outcome, federation.session, "a federation")
    place = federation.folder / "model.json"
    place.write_bytes(model.to_bytes())
    again = Model.load(place)
    assert model.report_text("2026-01-02") == again.report_text("2026-01-02")
    assert model.report.public is not None and model.report.public.digest == model.plan.digest
    assert model.filing("")["agreed_digest"] == federation.plan.with_joint_structure().digest


def test_the_curve_of_epsilon_begins_with_what_the_journal_holds(
    federate: Builder, killed: type[BaseException]
) -> None:
    """A page that is opened after a restart shows the whole run, and each point is what was spent then."""
    federation = federate(4, make_plan(model={"n_trees": 8}))
    names = [site.name for site in federation.roster.sites]
    first, again = (RunBoard(federation.plan, names, 8, lambda: federation.now, each * 8) for each in (b"1", b"2"))
    told = dict[int, float]()

    def watch(event: RunEvent) -> None:
        first(event)
        if event.kind is RunEventKind.RELEASED:
            report = first.report(HubTraffic())
            told[report.rounds_done] = report.epsilon_spent

    federation.on_event, federation.tamper = watch, lambda _: first.attach(federation.session.run)
    begun(federation, killed, 14)
    assert first.past_curve() == [] and told
    curves = list[list[tuple[int, float]]]()

    def attach(_: object) -> None:
        again.attach(federation.session.run)
        curves.append(again.past_curve())

    federation.on_event, federation.tamper = again, attach
    federation.run()
    (curve,) = curves
    assert curve[0] == (0, 0.0) and len(curve) >= 3 and curve == sorted(curve)
    # The first process was killed after a write, before it told anybody.
    assert curve[-1][0] in (max(told), max(told) + 1)
    for n_rounds, epsilon in curve[1:]:
        assert n_rounds not in told or math.isclose(epsilon, told[n_rounds])
    # What is released afterwards is no part of it.
    assert again.past_curve() == curve
