"""Survey sites that are objects in this process: sums over all of them, noise, a ledger; what estimators call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.server.release import PlainAggregation, Releaser
from hedgerow.survey.program import Findings, Questions, survey
from hedgerow.survey.queries import RawSite
from hedgerow.survey.site import SurveyNode


@dataclass(frozen=True, eq=False)
class Surveyed:
    """What a survey found, and its releases: they go into the plan that is made of it (`Plan.prepared`)."""

    findings: Findings
    ledger: Ledger


def survey_sites(questions: Questions, sites: Mapping[str, RawSite], noise: NoiseSource) -> Surveyed:
    """Carry a survey out over all sites; deterministic but for `noise`.

    Sums are taken in the clear: all rows are in this process anyway.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """
    nodes = [SurveyNode(name, sites[name], questions.rows_per_unit) for name in sorted(sites)]
    aggregation, releaser, program = PlainAggregation(nodes), Releaser(noise), survey(questions)
    try:
        query = next(program)
        while True:
            query = program.send(releaser.release(query, aggregation.sum_of(query)))
    except StopIteration as finished:
        return Surveyed(finished.value, releaser.ledger)
