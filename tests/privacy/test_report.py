"""The report: what voids the guarantee, and that people read what the accountants found."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from hedgerow.errors import PrivacyError
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import DiscreteGaussianSumEvent, GaussianEvent, UnnoisedEvent
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.report import PrivacyContext, build_report, check_claims, list_warnings
from hedgerow.protocol.queries import NoiseCohort
from tests.builders import coded

CONTEXT = PrivacyContext(delta=1e-5, epsilon_requested=1.0)


def _ledger(n_releases: int = 4, unnoised: bool = False) -> Ledger:
    ledger = Ledger()
    for index in range(n_releases):
        event = UnnoisedEvent() if unnoised and index == 2 else GaussianEvent(8.0)
        ledger = ledger.append(Release(f"run/{index}", index, "LeafSums", event, 32, 1000.0, 8000))
    return ledger


def test_the_report_reads_the_ledger() -> None:
    """Protects the numbers: both accountants, over all releases."""
    report = build_report(_ledger(), CONTEXT)
    events = [GaussianEvent(8.0)] * 4
    assert report.epsilon_gdp == get_accountant("gdp").epsilon(events, 1e-5)
    assert report.epsilon_rdp == get_accountant("rdp").epsilon(events, 1e-5)
    assert report.epsilon == report.epsilon_gdp < report.epsilon_rdp
    assert build_report(_ledger(), dataclasses.replace(CONTEXT, accountant="rdp")).epsilon == report.epsilon_rdp
    assert report.n_releases == 4
    assert report.guarantee == "holds"


@pytest.mark.parametrize(
    ("changes", "unnoised", "word"),
    [
        ({"seeded": True}, False, "experimental"),
        ({"approximate_noise": True}, False, "approximate"),
        ({"bounds_from_data": True}, False, "read off"),
        ({}, True, "without noise"),
    ],
)
def test_what_voids_the_guarantee_is_said(changes: dict[str, bool], unnoised: bool, word: str) -> None:
    """Protects people from trusting an experiment: the text opens with VOID and names the reason."""
    report = build_report(_ledger(unnoised=unnoised), dataclasses.replace(CONTEXT, **changes))
    assert report.guarantee == "void"
    assert any(word in reason for reason in report.voided_by)
    assert report.text().startswith("Privacy guarantee: VOID")
    assert word in report.text()
    assert "in words" not in report.text()
    assert ("infinite" in report.text()) == unnoised


@pytest.mark.parametrize("unnoised", [False, True])
def test_a_report_survives_json(unnoised: bool) -> None:
    """Protects the model file: strict JSON, infinity included, and derived fields are derived again."""
    context = dataclasses.replace(CONTEXT, unit="patient_id", max_rows_per_unit=3, sites_per_unit=1 + unnoised)
    report = build_report(_ledger(unnoised=unnoised), context)
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    check_claims(stored, report)
    if unnoised:
        stored["guarantee"] = "holds"
        with pytest.raises(PrivacyError, check=coded("report-untrue")):
            check_claims(stored, report)


def test_a_cut_report_is_refused() -> None:
    """Protects against a missing flag being read as its harmless default."""
    stored = build_report(_ledger(), CONTEXT).to_dict()
    del stored["seeded"]
    with pytest.raises(PrivacyError) as caught:
        check_claims(stored, build_report(_ledger(), CONTEXT))
    assert caught.value.code == "malformed-report"


def test_the_text_says_whom_it_protects_and_whom_one_trusts() -> None:
    """Protects understanding: unit, rows, adjacency and trust are in the text, in both noise modes."""
    context = dataclasses.replace(CONTEXT, unit="patient_id", max_rows_per_unit=3)
    text = build_report(_ledger(), context).text()
    assert "each patient_id:" in text and " 3 row(s) " in text and " 1 site(s) " in text
    more = dataclasses.replace(context, sites_per_unit=2)
    assert " 2 site(s) " in build_report(_ledger(), more).text()
    assert "one patient_id" in text
    assert "server: " in text
    with pytest.raises(PrivacyError):
        build_report(_ledger(), dataclasses.replace(context, noise_mode="none"))


@pytest.mark.parametrize("noise_multiplier", [0.01, 0.1234567, 1.0, 4.999, 37.3, 1000.1, 1e5])
def test_the_text_never_shows_less_than_was_spent(noise_multiplier: float) -> None:
    """Protects against flattering rounding: the printed epsilon is at least the accounted one, and close to it."""
    entry = Release("run/0", 0, "LeafSums", GaussianEvent(noise_multiplier), 32, 1.0, noise_multiplier)
    report = build_report(Ledger((entry,)), PrivacyContext(delta=1e-6))
    epsilon, text = report.epsilon, report.text()
    found = re.search(r"epsilon spent\s+(\S+) at", text)
    assert found is not None
    shown = float(found.group(1))
    assert epsilon <= shown <= epsilon * (1 + 1e-4)
    if epsilon > 20:
        assert "says little" in text
    assert math.isfinite(shown)


def _shared(*cohorts: NoiseCohort | None) -> Ledger:
    """One release in each of these cohorts; None for one of a version that did not keep it."""
    releases = []
    for index, cohort in enumerate(cohorts):
        event = DiscreteGaussianSumEvent.from_shares(8000, 4 if cohort is None else cohort.n_shares, 10**6, 32)
        sigma = 8000 * math.sqrt(event.n_shares)
        releases.append(Release(f"run/{index}", index, "LeafSums", event, 32, 1000.0, sigma, cohort))
    return Ledger(tuple(releases))


DISTRIBUTED = dataclasses.replace(CONTEXT, noise_mode="distributed")
SMALL, LARGE = NoiseCohort(5, 1, 3), NoiseCohort(10, 2, 4)


def test_noise_of_the_sites_names_the_colluders_that_it_withstands() -> None:
    """Who reads the report must know which coalition breaks the promise, in every set of sites that it was made in."""
    report = build_report(_shared(LARGE, LARGE), DISTRIBUTED)
    assert "at most 2 of the 10 sites work " in report.trust
    assert report.to_dict()["cohorts"] == [{"sites": 10, "colluders": 2, "shares": 4, "releases": 2}]
    both = build_report(_shared(LARGE, SMALL, SMALL), DISTRIBUTED)
    assert all(each in both.trust for each in ("2 of the 10", "1 of the 5", "1 release(s)", "2 release(s)"))
    assert both.cohorts == {LARGE: 1, SMALL: 2}
    old = build_report(_shared(None, None), DISTRIBUTED)
    assert "at least 4" in old.trust and "did not write down" in old.trust
    assert "cohorts" not in old.to_dict()
    mixed = build_report(_shared(SMALL, None), DISTRIBUTED)
    assert "1 of the 5" in mixed.trust and "did not write down" in mixed.trust


def test_a_cohort_is_kept_in_the_ledger_and_old_ledgers_keep_their_bytes() -> None:
    """An older version refuses a ledger whose lines it would read half; what has none of them is written as before."""
    ledger = _shared(SMALL)
    assert json.loads(ledger.to_json())["version"] == 2 and Ledger.from_json(ledger.to_json()) == ledger
    plain = json.loads(_ledger().to_json())
    assert plain["version"] == 1
    assert set(plain["releases"][0]) == {"purpose", "round", "kind", "event", "length", "sensitivity", "sigma"}
    for change in ({"shares": 4}, {"shares": 2}, {"colluders": 5}, {"sites": "5"}, {"colluders": None}):
        content = json.loads(ledger.to_json())
        content["releases"][0]["cohort"] |= change
        with pytest.raises(PrivacyError) as caught:
            Ledger.from_json(json.dumps(content))
        assert caught.value.code == "malformed-ledger"


@pytest.mark.parametrize("mode", ["server", "distributed", "local"])
def test_a_report_is_of_the_noise_that_is_in_its_ledger(mode: str) -> None:
    """Noise of the coordinator reported as the sites' would promise protection from the coordinator."""
    for ledger, right in ((_ledger(), "server"), (_shared(SMALL), "distributed"), (_shared(None), "distributed")):
        if mode != right:
            with pytest.raises(PrivacyError) as caught:
                build_report(ledger, dataclasses.replace(CONTEXT, noise_mode=mode))
            assert caught.value.code == "noise-mode-unsupported"


def test_a_promise_that_holds_and_says_nothing_comes_with_a_warning() -> None:
    """Delta 0.5 lets the promise fail for every other person; HOLDS alone would be taken for safety."""
    report = build_report(_ledger(), dataclasses.replace(CONTEXT, delta=0.5, n_records=1000))
    text = report.text().splitlines()
    assert text[0].startswith("Privacy guarantee: HOLDS for one record, given what is taken as public below: epsilon ")
    assert "1 / n_records (0.5, 1 / 1000)" in text[1]
    assert report.to_dict()["warnings"] == [report.warnings[0]] and len(report.warnings) == 1
    assert not build_report(_ledger(), dataclasses.replace(CONTEXT, n_records=1000)).warnings
    (weak,) = list_warnings(100.0, 1e-9, 1000)
    assert "above 10" in weak
    assert len(list_warnings(100.0, 0.5, 1000)) == 2 and not list_warnings(10.0, 1e-9, None)


def test_every_promise_says_what_a_site_beyond_its_declared_rows_has() -> None:
    """No party knows which site holds more rows than it declared, so whether sites are named must not decide it."""
    for place, is_said in ("", True), ("network", True), ("process", False):
        names = {each.name for each in build_report(_ledger(), CONTEXT).made(place, 3).statement.sentences}
        assert ("more-rows" in names) == is_said
    assert "more-rows" not in {each.name for each in build_report(_ledger(unnoised=True), CONTEXT).statement.sentences}
