"""Survey sites that are objects in this process: sums over all of them, noise, a ledger; what estimators call."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hedgerow.local.training import build_aggregation
from hedgerow.plan.plan import PLAN_VERSION, Plan
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.queries import IntVector
from hedgerow.server.release import Answering, PlainAggregation, Releaser
from hedgerow.survey.curves import CurveQuestions
from hedgerow.survey.program import Findings, Questions, survey
from hedgerow.survey.queries import RawSite, SurveyQuery
from hedgerow.survey.site import SurveyNode
from hedgerow.survey.statistics import TableQuestions

MOST_ROWS = 2**33
"""Rows that all sites together may have at most: masked sums have words for so many."""
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Surveyed(Generic[Result]):
    """What a survey found, and its releases: they go into the plan that is made of it (`Plan.prepared`).

    `is_clear` says whether sums of several sites were added up without masks.
    """

    findings: Result
    ledger: Ledger
    is_clear: bool = False


def survey_sites(questions: Questions, sites: Mapping[str, RawSite], noise: NoiseSource) -> Surveyed[Findings]:
    """Carry a survey out over all sites, by `carried_out`; raises PrivacyError for an epsilon or delta out of range."""
    return carried_out(questions, survey(questions), sites, noise)


def carried_out(
    questions: Questions | TableQuestions | CurveQuestions,
    program: Generator[SurveyQuery, IntVector, Result],
    sites: Mapping[str, RawSite],
    noise: NoiseSource,
) -> Surveyed[Result]:
    """Carry a program out over all sites, under masks as a training would be; deterministic but for `noise`.

    Args:
        questions: what the program answers.
        program: a fresh one.
        sites: each site's rows, by its name.
    """
    query = next(program)
    nodes: list[Answering] = [SurveyNode(name, sites[name], questions.rows_per_unit) for name in sorted(sites)]
    aggregation = build_aggregation(_carrier(questions, len(nodes)), nodes, questions.n_exchanges, noise)
    releaser = Releaser(noise)
    try:
        while True:
            query = program.send(releaser.release(query, aggregation.sum_of(query)))
    except StopIteration as finished:
        is_clear = len(nodes) > 1 and isinstance(aggregation, PlainAggregation)
        return Surveyed(finished.value, releaser.ledger, is_clear)


def _carrier(questions: Questions | TableQuestions | CurveQuestions, n_sites: int) -> Plan:
    """What secure sums need to know of a plan: who adds the noise, and how large a sum may be."""
    return Plan.from_dict(
        {
            "version": PLAN_VERSION,
            "name": "survey",
            "privacy": {"epsilon": questions.epsilon, "delta": questions.delta, "n_records": MOST_ROWS},
            "federation": {"min_sites": n_sites},
            "label": {"name": "label", "type": "binary", "classes": ["0", "1"]},
            "features": [{"name": "feature", "type": "numeric", "min": 0, "max": 1}],
        }
    )
