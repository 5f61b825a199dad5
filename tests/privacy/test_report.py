"""The report: what voids the guarantee, and that people read what the accountants found."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.events import GaussianEvent, UnnoisedEvent
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, report_of
from hedgerow.protocol.errors import PrivacyError

CONTEXT = PrivacyContext(delta=1e-5, epsilon_requested=1.0)


def _ledger(n_releases: int = 4, unnoised: bool = False) -> Ledger:
    ledger = Ledger()
    for index in range(n_releases):
        event = UnnoisedEvent() if unnoised and index == 2 else GaussianEvent(8.0)
        ledger = ledger.append(Release(f"run/{index}", index, "LeafSums", event, 32, 1000.0, 8000))
    return ledger


def test_the_report_reads_the_ledger() -> None:
    """Protects the numbers: both accountants, over all releases."""
    report = report_of(_ledger(), CONTEXT)
    events = [GaussianEvent(8.0)] * 4
    assert report.epsilon_gdp == get_accountant("gdp").epsilon(events, 1e-5)
    assert report.epsilon_rdp == get_accountant("rdp").epsilon(events, 1e-5)
    assert report.epsilon == report.epsilon_gdp < report.epsilon_rdp
    assert report_of(_ledger(), dataclasses.replace(CONTEXT, accountant="rdp")).epsilon == report.epsilon_rdp
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
    report = report_of(_ledger(unnoised=unnoised), dataclasses.replace(CONTEXT, **changes))
    assert report.guarantee == "void"
    assert any(word in reason for reason in report.voided_by)
    assert report.text().startswith("Privacy guarantee: VOID")
    assert word in report.text()
    assert "in words" not in report.text()
    assert ("infinite" in report.text()) == unnoised


@pytest.mark.parametrize("unnoised", [False, True])
def test_a_report_survives_json(unnoised: bool) -> None:
    """Protects the model file: strict JSON, infinity included, and derived fields are derived again."""
    report = report_of(_ledger(unnoised=unnoised), dataclasses.replace(CONTEXT, unit="patient_id", max_rows_per_unit=3))
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert PrivacyReport.from_dict(stored) == report
    stored["guarantee"] = "holds"
    stored["voided_by"] = []
    assert PrivacyReport.from_dict(stored).guarantee == report.guarantee


def test_a_cut_report_is_refused() -> None:
    """Protects against a missing flag being read as its harmless default."""
    stored = report_of(_ledger(), CONTEXT).to_dict()
    del stored["seeded"]
    with pytest.raises(PrivacyError) as caught:
        PrivacyReport.from_dict(stored)
    assert caught.value.code == "malformed-report"


def test_the_text_says_whom_it_protects_and_whom_one_trusts() -> None:
    """Protects understanding: unit, rows, adjacency and trust are in the text, in both noise modes."""
    context = dataclasses.replace(CONTEXT, unit="patient_id", max_rows_per_unit=3)
    text = report_of(_ledger(), context).text()
    assert "each patient_id, of whom at most 3 row(s)" in text
    assert "add or remove one patient_id" in text
    assert "trusted to add" in text
    distributed = dataclasses.replace(context, noise_mode="distributed", honest_sites=5)
    assert "at least 5 sites" in report_of(_ledger(), distributed).text()
    with pytest.raises(PrivacyError):
        report_of(_ledger(), dataclasses.replace(context, noise_mode="none"))


@pytest.mark.parametrize("epsilon", [0.1, 0.123456789, 0.9999999, 1.0, 2.0000049, 12345.678, 1e-7])
def test_the_text_never_shows_less_than_was_spent(epsilon: float) -> None:
    """Protects against flattering rounding: the printed epsilon is at least the accounted one, and close to it."""
    text = PrivacyReport(None, epsilon, epsilon, 1e-6, 1).text()
    found = re.search(r"epsilon spent\s+(\S+) at", text)
    assert found is not None
    shown = float(found.group(1))
    assert epsilon <= shown <= epsilon * (1 + 1e-4)
    if epsilon > 20:
        assert "says little" in text
    assert math.isfinite(shown)
