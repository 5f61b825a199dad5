"""A survey over an engine: the local engine's findings and plan, its cost in every account, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hedgerow.client.policy import Policy
from hedgerow.data.adapters import Adapter
from hedgerow.data.raw_cells import read_raw, read_raw_site
from hedgerow.data.site_data import read_site_data
from hedgerow.data.sources import adapt
from hedgerow.errors import AggregationError, DataError, HedgerowError, PrivacyError, RemoteProtocolError, UsageError
from hedgerow.local.survey import TableSurvey, ask_curves, draft_plan, survey_tables, table_survey
from hedgerow.methods.tasks import SurveyTask, TrainingTask, survey_task, task_from_text, task_to_text
from hedgerow.plan.plan import Feature, Plan, parse_plan
from hedgerow.plan.toml import plan_toml
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.noise import SeededNoise, SystemNoise
from hedgerow.protocol.messages import Message, MessageKind, RoundRequest, SurveyInvitation
from hedgerow.server import coordinator as phases
from hedgerow.server.release import Outcome
from hedgerow.survey.curves import SurvivalCurves
from hedgerow.survey.requests import OpenTable
from hedgerow.survey.statistics import TableStatistics
from tests.memory_network import telling
from tests.tiers import every

if TYPE_CHECKING:
    from conftest import Builder, Federation

POLICY = Policy(
    version=1, data_set="test", max_epsilon=100.0, delta=1e-5, noise=("server", "distributed"), surveys=True
)  # fmt: skip
N = 4000
def write_tables(folder: Path, sites: list[str]) -> dict[str, Path]:
    """A table for each site, with cells that do not fit and rows of one patient at most thrice."""
    draw, tables = np.random.default_rng(5), {}
    for site in sites:
        lines = ["patient,age,dose,ward,stay,y,n,b"]
        for row in range(N // len(sites)):
            age = "unknown" if row % 50 == 7 else str(int(draw.integers(20, 90)))
            text = ["no", "yes", ""][int(draw.integers(0, 3))] if row % 40 == 3 else ["no", "yes"][row % 2]
            number = "x" if row % 60 == 5 else str(row % 2)
            cells = [
                f"{site}-{row // 3}", age, f"{draw.uniform():.3f}", "ab"[row % 2], f"{draw.exponential(9):.4f}", text,
                number, f"{draw.normal(50, 3):.3f}",
            ]  # fmt: skip
            lines.append(",".join(cells))
        tables[site] = folder / f"{site}.csv"
        tables[site].write_text("\n".join(lines) + "\n")
    return tables


def statistics(label: str = "y", **privacy: Any) -> OpenTable:
    """Statistics of all columns of these tables but the identifier; one of them is declared."""
    columns = [Feature(name=name, type="") for name in ("age", "ward", "stay", "y", "n")]
    columns.append(Feature(name="dose", type="numeric", min=0.0, max=1.0))
    return OpenTable.of(columns, label, {"epsilon": 12.0, "delta": 1e-6, **privacy})


def curves(**privacy: Any) -> OpenTable:
    """Kaplan-Meier curves of these tables: of stays, and whether the ward's patients were seen to leave."""
    part = (
        '[label]\nname = "stay"\ntype = "survival"\nevent = "y"\nintervals = [4, 8, 16, 32]\n'
        '[[features]]\nname = "ward"\ntype = "categorical"\ncategories = ["a", "b"]\n'
    )
    return ask_curves(part, "ward", {"epsilon": 4.0, "delta": 1e-6, **privacy})


def found_by(federation: Federation, outcome: Outcome) -> TableSurvey:
    """What the coordinator of statistics has at the end."""
    assert federation.survey is not None and isinstance(federation.survey.asked, OpenTable)
    assert federation.session is not None
    said = federation.survey.asked.statistics(federation.session.run.releases, outcome.ledger)
    return table_survey(federation.survey.asked, said, outcome.ledger, federation.noise)


def begin(federate: Builder, open_table: OpenTable, n_sites: int = 4, **more: Any) -> Federation:
    """A federation whose nodes take surveys, as `--federated` asks them."""
    policies = {f"site-{number}": POLICY for number in range(n_sites)} | more.pop("policies", {})
    federation = federate(n_sites, policies=policies, must_start=False, **more)
    federation.survey = SurveyTask(open_table)
    tables = write_tables(federation.folder, list(federation.parties))
    for site, party in federation.parties.items():
        path = tables[site]
        party.setup = dataclasses.replace(
            party.setup,
            plan=None,
            load_raw=lambda asked, path=path: read_raw_site(path, asked),
            load=lambda plan, path=path: read_site_data(path, plan)[0],
        )
        party.start()
    return federation


def run(federation: Federation, **more: Any) -> Outcome:
    """One life of a survey's coordinator."""
    assert federation.survey is not None
    return federation.run(plan=federation.survey.plan, **more)


def plan_found(federation: Federation, outcome: Outcome) -> str:
    """The plan's file."""
    plan = draft_plan(found_by(federation, outcome), 4)
    assert plan is not None
    return plan_toml(plan)


def few_trees(text: str) -> Plan:
    """A plan's file with few trees: how many there are says nothing about the releases before them."""
    table = parse_plan(text).to_dict()
    return Plan.from_dict({**table, "model": {**table["model"], "n_trees": 6}})


def local_plan(federation: Federation, *sites: str) -> str:
    """The plan that the local engine finds over the same rows."""
    assert federation.survey is not None
    asked, names = federation.survey.asked, sites or tuple(federation.parties)
    unit = asked.schema_plan.privacy.unit
    tables = {site: read_raw(federation.folder / f"{site}.csv", asked.columns, unit) for site in names}
    plan = draft_plan(survey_tables(asked, tables, SeededNoise(1)), 4)
    assert plan is not None
    return plan_toml(plan)


@pytest.mark.parametrize("unit", ["record", "patient"])
def test_statistics_are_the_local_engines(federate: Builder, unit: str) -> None:
    """`hedgerow survey` over a network and over the same files: the same bytes, account, report and plan; every node
    finds the same, and its book has the cost.
    """
    rows = {} if unit == "record" else {"unit": unit, "max_rows_per_unit": 2}
    federation = begin(federate, statistics(**rows))
    outcome = run(federation)
    found = found_by(federation, outcome)
    columns = statistics().columns
    tables = {site: read_raw(federation.folder / f"{site}.csv", columns, unit) for site in federation.parties}
    local = survey_tables(statistics(**rows), tables, SeededNoise(1))
    assert json.dumps(found.statistics.to_dict()) == json.dumps(local.statistics.to_dict())
    assert found.ledger == local.ledger and found.report == local.report
    plan = draft_plan(found, 4)
    assert plan is not None and plan == draft_plan(local, 4) and plan.privacy.unit == unit
    assert found.statistics.classes == ("no", "yes")
    for party in federation.parties.values():
        assert party.session is not None and party.is_done and party.book is not None and not party.failures
        assert party.session.result == outcome.findings == found.statistics
        (line,) = party.book.lines("test")
        assert line.status == "finished" and line.plan_name == "statistics"
        assert 0.99 * 12 < line.epsilon(1e-6) <= 12


@pytest.mark.parametrize("noise", ["server", "distributed"])
def test_curves_are_the_local_engines(federate: Builder, noise: str) -> None:
    """`hedgerow survey --survival` over a network: the curves of the same files, one release in each site's book, and
    bands of all the noise that is in it.
    """
    federation = begin(federate, curves(noise=noise))
    outcome = run(federation)
    found, promised = found_by(federation, outcome).statistics, outcome.findings
    assert isinstance(found, SurvivalCurves) and isinstance(promised, SurvivalCurves)
    tables = {site: read_raw(federation.folder / f"{site}.csv", curves().columns) for site in federation.parties}
    local = survey_tables(curves(), tables, SeededNoise(1))
    if noise == "server":
        assert found == promised == local.statistics and outcome.ledger == local.ledger
    else:
        assert found.n_records.deviation > promised.n_records.deviation
        assert isinstance(local.statistics, SurvivalCurves)
        assert found.n_records.value == pytest.approx(local.statistics.n_records.value, abs=100)
    assert [curve.group for curve in found.curves] == ["a", "b"] and found.curves[0].survival
    for party in federation.parties.values():
        assert party.is_done and party.book is not None and not party.failures
        (line,) = party.book.lines("test")
        assert line.status == "finished" and 0.99 * 4 < line.epsilon(1e-6) <= 4


def test_a_training_follows_the_plan_of_statistics(federate: Builder) -> None:
    """The drafted plan trains over the same nodes, and the model's account holds both."""
    federation = begin(federate, statistics(noise="distributed"), noise=SystemNoise(os.urandom))
    outcome = run(federation)
    plan = few_trees(plan_found(federation, outcome))
    assert plan.privacy.noise == "distributed" and {release.noise for release in plan.prepared} == {"distributed"}
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(party.setup, plan=plan)
        party.start()
    federation.survey, federation.plan = None, plan
    made = federation.run()
    assert outcome.report.epsilon < made.report.epsilon <= plan.privacy.epsilon == 24
    assert len(made.ledger) > len(plan.prepared) > 3


def test_bands_are_of_all_the_noise_that_the_sites_added(federate: Builder) -> None:
    """Some sites' shares of noise are enough, and all sites add theirs: what is said of the noise is what is there."""
    federation = begin(federate, statistics("", noise="distributed"), 5, noise=SystemNoise(os.urandom))
    outcome = run(federation)
    found, promised = found_by(federation, outcome), outcome.findings
    assert isinstance(promised, TableStatistics)
    cohort = outcome.ledger.releases[0].cohort
    assert cohort is not None and cohort.n_sites > cohort.n_shares
    share = math.sqrt(cohort.n_sites / cohort.n_shares)
    assert found.statistics.n_records.deviation == pytest.approx(promised.n_records.deviation * share)
    assert found.statistics.n_records.value == promised.n_records.value
    groups = zip(found.statistics.columns[0].groups, promised.columns[0].groups, strict=True)
    assert all(own.count.deviation == pytest.approx(other.count.deviation * share) for own, other in groups)
    assert found.report.noise_mode == "distributed" and 0.99 * 12 < found.report.epsilon <= 12


def test_the_sites_can_add_the_noise_of_a_survey(federate: Builder) -> None:
    """With distributed noise the plan names the cohorts, and nobody held an exact sum."""
    federation = begin(federate, statistics(noise="distributed"), 5, noise=SystemNoise(os.urandom))
    plan = parse_plan(plan_found(federation, run(federation)))
    assert {release.noise for release in plan.prepared} == {"distributed"}
    assert all(release.sites == 5 and release.shares for release in plan.prepared)


def test_a_training_by_the_found_plan_reports_both_and_every_book_has_both(federate: Builder) -> None:
    """The survey is charged at each site when it is made, the training after it; the report holds the whole."""
    federation = begin(federate, statistics())
    outcome = run(federation)
    plan = few_trees(plan_found(federation, outcome))
    cost = get_accountant("gdp").epsilon(outcome.ledger.events(), 1e-5)
    for party in federation.parties.values():
        assert party.book is not None
        (line,) = party.book.lines("test")
        assert line.status == "finished" and line.plan_name == "statistics"
        assert party.book.spent("test", 1e-5) == pytest.approx(cost, rel=1e-9)
        assert [asked.kind for asked in party.book.invitations()] == ["survey"]
        party.kill()
        party.setup = dataclasses.replace(party.setup, plan=plan)
        party.start()
    federation.survey, federation.plan = None, plan
    made = federation.run()
    assert outcome.report.epsilon < made.report.epsilon <= plan.privacy.epsilon
    whole = get_accountant("gdp").epsilon(made.ledger.events(), 1e-5)
    for party in federation.parties.values():
        assert party.book is not None and not party.failures
        assert len(party.book.lines("test")) == 2 and party.book.spent("test", 1e-5) >= 0.99 * whole


def test_a_training_reserves_nothing_that_its_survey_has_been_charged_for(federate: Builder) -> None:
    """A book with room for the survey and the training has room for both one after the other: `[[prepared]]` releases
    are on it already, and were reserved beside that a second time.
    """
    federation = begin(federate, statistics())
    plan = few_trees(plan_found(federation, run(federation)))
    whole = [*read_prepared_events(plan), *TrainingTask(plan).schedule.events]
    room = get_accountant("gdp").epsilon(whole, POLICY.delta) * (1 + 1e-9)
    assert room < get_accountant("gdp").epsilon([*read_prepared_events(plan), *whole], POLICY.delta)
    for party in federation.parties.values():
        party.kill()
        party.setup = dataclasses.replace(
            party.setup, plan=plan, policy=dataclasses.replace(party.setup.policy, max_epsilon=room)
        )
        party.start()
    federation.survey, federation.plan = None, plan
    federation.run()
    for party in federation.parties.values():
        assert party.book is not None and not party.failures
        assert 0.99 * room <= party.book.spent("test", POLICY.delta) <= room


def test_a_coordinator_killed_after_any_write_ends_in_the_same(federate: Builder, killed: type[BaseException]) -> None:
    """A crash draws no noise twice: what is found is an undisturbed run's, also where it was found and not yet said."""

    def end(federation: Federation, **others: Any) -> Any:
        outcome = run(federation, **others)
        found = found_by(federation, outcome)
        return found.statistics, found.ledger, plan_found(federation, outcome)

    expected = end(begin(federate, statistics(), name="whole"))
    for kill_after in range(2, 100, 5):
        federation = begin(federate, statistics(), name=f"killed-{kill_after}")
        was_killed = False
        try:
            run(federation, kill_after=kill_after)
        except killed:
            was_killed = True
        assert end(federation) == expected
        federation.close()
        if not was_killed:
            assert kill_after > 8
            return
    raise AssertionError("the survey never ended")


@pytest.mark.parametrize("number", every(3, range(1, 15)))
def test_a_node_killed_at_any_message_takes_part_again(federate: Builder, number: int) -> None:
    """It goes on from its store, and answers no question twice; the plan is that of the sites that were in."""
    federation = begin(federate, statistics())
    victim = federation.parties["site-1"]
    victim.after(number, victim.restart)
    outcome = run(federation)
    assert not victim.failures and victim.is_done
    assert federation.session is not None
    if all(len(survivors) == 4 for survivors in federation.session.run.survivors):
        assert plan_found(federation, outcome) == local_plan(federation)


REFUSALS: dict[str, dict[str, Any]] = {
    "policy-survey": {"surveys": False},
    "policy-query-kind": {"query_kinds": ("LeafSums",)},
    "policy-feature": {"features": ("age",)},
    "policy-label": {"labels": ("z",)},
    "policy-noise": {"noise": ("distributed",)},
    "policy-over-budget": {"max_epsilon": 0.5},
    "policy-coordinator": {"coordinators": ("00" * 32,)},
    "policy-unit": {"unit": "patient"},
}


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_policy_refuses_a_survey_by_its_code(federate: Builder, code: str) -> None:
    """The owner's rules hold as for training, and surveys are taken by owners who said so only."""
    policy = dataclasses.replace(POLICY, **REFUSALS[code])
    if not policy.surveys:
        policy = dataclasses.replace(policy, plans=("00" * 32,))
    federation = begin(federate, statistics(), 5, policies={"site-0": policy})
    run(federation)
    victim = federation.parties["site-0"]
    assert [fault.code for fault in victim.failures] == [code]
    assert federation.session is not None
    assert all("site-0" not in survivors for survivors in federation.session.run.survivors)


@pytest.mark.parametrize("allows", [True, False])
def test_a_node_with_a_plan_of_its_own_takes_a_survey_where_its_policy_says_so(federate: Builder, allows: bool) -> None:
    """A study's sites have all pinned its plan; whether statistics are asked for besides is their owners' to say."""
    federation = begin(federate, statistics(), 5)
    victim = federation.parties["site-0"]
    victim.kill()
    policy = dataclasses.replace(POLICY, surveys=allows)
    victim.setup = dataclasses.replace(victim.setup, plan=federation.plan, policy=policy)
    victim.start()
    run(federation)
    assert [fault.code for fault in victim.failures] == ([] if allows else ["policy-survey"])
    assert federation.session is not None
    assert any("site-0" in survivors for survivors in federation.session.run.survivors) is allows


def _changed(invitation: SurveyInvitation, section: str, **values: Any) -> SurveyInvitation:
    table = json.loads(invitation.questions)
    table[section] = {**table[section], **values}
    return dataclasses.replace(invitation, questions=json.dumps(table).encode())


LIES: dict[str, tuple[Callable[[SurveyInvitation], SurveyInvitation], str]] = {
    "no questions": (lambda i: dataclasses.replace(i, questions=b"[[["), "plan-unreadable"),
    "a list": (lambda i: dataclasses.replace(i, questions=b"[]"), "plan-unreadable"),
    "another subject": (lambda i: dataclasses.replace(i, about="rows"), "plan-unreadable"),
    "no columns": (lambda i: dataclasses.replace(i, questions=b"{}"), "plan-unreadable"),
    "gaps of a plan": (lambda i: dataclasses.replace(i, about="plan"), "plan-unreadable"),
    "no noise": (lambda i: _changed(i, "privacy", epsilon=math.inf), "policy-unnoised"),
    "a dear one": (lambda i: _changed(i, "privacy", epsilon=1e5), "policy-over-budget"),
    "a smaller promise": (lambda i: _changed(i, "privacy", epsilon=11.0), ""),
    "a larger unit": (lambda i: _changed(i, "privacy", unit="patient", max_rows_per_unit=3), ""),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_coordinator_that_asks_sites_different_things_gets_no_sum_of_them(federate: Builder, lie: str) -> None:
    """A task's digest is in every answer: a site that was asked something else is refused, or refuses, and is out."""
    change, code = LIES[lie]
    federation = begin(federate, statistics(), 5)

    federation.tamper = telling("site-0", lambda said: change(said) if isinstance(said, SurveyInvitation) else said)
    outcome = run(federation)
    assert [fault.code for fault in federation.parties["site-0"].failures] == ([code] if code else [])
    if not code:
        assert "plan-changed" in federation.codes("complaint")
    assert plan_found(federation, outcome) == local_plan(federation, "site-1", "site-2", "site-3", "site-4")


def test_other_releases_than_were_made_lead_to_another_question_which_is_refused(federate: Builder) -> None:
    """A node makes each question by itself, of the questions and the releases: the spec of another is not masked."""
    federation = begin(federate, statistics(), 5)

    def changed(said: Message) -> Message:
        is_told = isinstance(said, RoundRequest) and said.releases
        return dataclasses.replace(said, releases=(said.releases[0] + 1,)) if is_told else said

    federation.tamper = telling("site-0", changed)
    run(federation)
    assert [fault.code for fault in federation.parties["site-0"].failures] == ["purpose-unexpected"]


def test_a_coordinator_that_claims_less_sensitivity_is_not_answered(
    federate: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise in a signed spec has to be what the node's own questions ask for."""
    federation = begin(federate, statistics(), 5)
    federation.while_waiting = lambda _: False
    whole = phases.round_in

    def less(query: Any, *more: Any) -> Any:
        return whole(dataclasses.replace(query, sensitivity_squared=query.sensitivity_squared // 4), *more)

    monkeypatch.setattr(phases, "round_in", less)
    with pytest.raises(HedgerowError):
        run(federation)
    codes = {fault.code for party in federation.parties.values() for fault in party.failures}
    assert codes == {"noise-mismatch"}
    assert federation.session is not None and not federation.session.run.releases


def test_a_survey_that_is_over_is_not_answered_again(federate: Builder) -> None:
    """A coordinator that lost its journal and asks again under the same number gets nothing."""
    federation = begin(federate, statistics(), 4)
    run(federation)
    assert federation.session is not None
    run_id = federation.session.run.run_id
    for file in federation.folder.glob("journal-survey.db*"):
        file.unlink()
    federation.coordinator_entropy = lambda n: run_id if n == 32 else os.urandom(n)
    for party in federation.parties.values():
        party.restart()
    with pytest.raises(AggregationError):
        run(federation)
    assert {fault.code for party in federation.parties.values() for fault in party.failures} == {"run-closed"}


def test_a_journal_of_a_survey_serves_no_other(federate: Builder) -> None:
    """What was found for one plan must not be taken for another's."""
    federation = begin(federate, statistics(), 4)
    run(federation)
    federation.survey = SurveyTask(statistics(epsilon=3.0))
    with pytest.raises(UsageError, match="journal"):
        run(federation)


def test_a_cell_that_does_not_fit_is_missing_by_itself(tmp_path: Path) -> None:
    """It changes no other cell of its row or column, and nothing is refused; so is a whole column of such cells."""
    path = tmp_path / "site.csv"
    content = b"age,dose,ward,stay,y,n\n1,x,a,2.5,yes,1\nold,1,a,3.5,7.0,1\n,1,a,inf,\xff,1\n4,1,a,oops,null,1\n"
    path.write_bytes(content)
    rows = read_raw_site(path, statistics())
    assert rows.n_records == 4
    assert rows.column(0).tolist() == [1, 4] and rows.column(2).tolist() == [2.5, 3.5, np.inf]
    assert rows.text_counts(3) == [("yes", 1), ("7", 1)]
    path.write_text("age,dose,ward,stay,y,n\n")
    assert read_raw_site(path, statistics()).n_records == 0
    path.write_text("age,dose,ward\n1,2,a\n")
    with pytest.raises(DataError):
        read_raw_site(path, statistics())


def test_a_site_without_rows_takes_part(federate: Builder) -> None:
    """Whether a table is empty is its rows' secret."""
    federation = begin(federate, statistics(), 4)
    (federation.folder / "site-2.csv").write_text("patient,age,dose,ward,stay,y,n,b\n")
    assert plan_found(federation, run(federation)) == local_plan(federation)


def test_a_table_that_is_written_in_its_own_way_answers_as_the_others(tmp_path: Path) -> None:
    """What a policy's [data] says of a table holds for statistics too: names, marks, texts and dates."""
    columns = [Feature(name="age", type=""), Feature(name="sex", type=""), Feature(name="seen", type="date")]
    open_table = OpenTable.of(columns, "", {"epsilon": 5.0, "delta": 1e-6, "unit": "patient", "max_rows_per_unit": 2})
    rows = [(f"p{row // 3}", str(20 + row), "fm"[row % 2], f"2020-0{1 + row % 9}-01") for row in range(90)]
    plain, own = tmp_path / "plain.csv", tmp_path / "own.csv"
    plain.write_text("patient,age,sex,seen\n" + "".join(",".join(row) + "\n" for row in rows))
    dates = [(*row[:2], {"f": "1", "m": "2"}[row[2]], f"01.0{row[3][6]}.2020") for row in rows]
    own.write_text("Fall;Alter;sex;seen\n" + "".join(";".join(row) + "\n" for row in dates))
    adapter = Adapter(
        rename=(("Fall", "patient"), ("Alter", "age")),
        recode=(("sex", (("1", "f"), ("2", "m"))),),
        date=(("seen", "%d.%m.%Y"),),
    )
    sites = [read_raw_site(adapt(str(own), adapter), open_table), read_raw_site(str(plain), open_table)]
    program = open_table.program()
    with contextlib.suppress(StopIteration):
        query = next(program)
        while True:
            answer, expected = (query.answer(site) for site in sites)
            assert (answer == expected).all() and answer.any()
            query = program.send(answer)
    assert type(query).__name__ == "CellCounts"
    assert sites[0].digest() == sites[1].digest()
    plain.write_text(plain.read_text().replace("p1,", "p1,1"))
    assert read_raw_site(str(plain), open_table).digest() != sites[0].digest()


@pytest.mark.parametrize(
    "spoiled",
    [
        {"columns": [{"type": "numeric"}]},
        {"columns": [{"name": "age"}, {"name": "age"}]},
        {"columns": [{"name": "age", "type": "numeric", "min": 1.0}]},
        {"columns": [{"name": "age", "type": "numeric", "min": 2.0, "max": 1.0}]},
        {"columns": [{"name": "age", "buckets": 3}]},
        {"columns": [{"name": "age", "type": "categorical", "categories": ["a", "a"]}]},
        {"columns": "age"},
        {"columns": []},
        {"label": "age of nobody"},
        {"label": 3},
        {"privacy": {"epsilon": 1.0, "delta": 1e-6, "noise": "local"}},
        {"privacy": {"epsilon": 1.0, "delta": 1e-6, "accountant": "pure"}},
        {"privacy": {"epsilon": -1.0, "delta": 1e-6}},
        {"privacy": {"epsilon": 1.0, "delta": 1e-6, "unit": "age"}},
        {"privacy": None},
        {"rows": 3},
    ],
)
def test_statistics_that_nobody_can_make_are_refused_by_who_reads_them(spoiled: dict[str, Any]) -> None:
    """What a coordinator invites to is checked by each node before anything else: an error of its own, no traceback."""
    content = json.dumps({**statistics().table, **spoiled}).encode()
    with pytest.raises((RemoteProtocolError, PrivacyError)):
        survey_task("statistics", content)


def test_statistics_are_as_long_as_is_said_before(federate: Builder) -> None:
    """What a policy and a message have to hold is known before anything is asked."""
    federation = begin(federate, statistics())
    outcome = run(federation)
    asked = statistics()
    lengths = [release.length for release in outcome.ledger]
    assert max(lengths) <= asked.questions.schedule.longest and sum(lengths) <= asked.questions.schedule.n_released
    assert len(lengths) <= asked.questions.schedule.n_rounds


def test_a_task_is_read_back_as_it_was_written() -> None:
    """By a node that was killed, and by one that is invited."""
    again = task_from_text(task_to_text(SurveyTask(statistics())))
    assert isinstance(again, SurveyTask) and again.asked.columns == statistics().columns
    assert again.digest == SurveyTask(statistics()).digest != SurveyTask(statistics("")).digest
    assert survey_task("statistics", SurveyTask(statistics()).asked.to_bytes()).digest == again.digest
    assert again.promise == (12.0, 1e-6)


def test_the_invitation_has_a_kind_of_its_own() -> None:
    """Older nodes refuse it as a message that they do not know."""
    assert MessageKind.SURVEY == 14
    assert Plan.from_dict(statistics().schema_plan.to_dict()).digest == statistics().schema_plan.digest
