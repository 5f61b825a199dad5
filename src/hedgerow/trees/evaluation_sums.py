"""What a record adds to an evaluation: integers only, so that the same record counts the same on every machine.

    position      of a record                                              model
    score         its score, in units of 2**-16                            binary
    probability   per class, its predicted probability, in units of 2**-30 three classes or more
    residual      |prediction - label|, in units of 2**-16, label scaled   regression

docs/privacy.md, section "Evaluation", says what one record can add at most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hedgerow.protocol.queries import ErrorMoments, IntVector, ScoreHistogram
from hedgerow.trees.ensemble import SOFTMAX
from hedgerow.trees.exponentials import exponentials
from hedgerow.trees.losses import SCORE_UNIT
from hedgerow.trees.routing import SiteRecords

PROBABILITY_UNIT = 2**30
POSITIONS = ("score", "probability", "residual")
_EXP_STEP_BITS = 6
_EXP_STEPS = 22 << (16 - _EXP_STEP_BITS)
"""Steps of 2**-10 of score; after 22 an exponential is below 2**-30."""


def positions(records: SiteRecords, position: str, link: str) -> NDArray[np.int64]:
    """Where each record lies on each curve: int64 [n_curves, n].

    Args:
        records: with the whole model in their scores.
        position: one of `POSITIONS`.
        link: what the scores mean (`hedgerow.trees.ensemble.LINKS`).
    """
    scores = records.scores.astype(np.int64)
    if position == "score":
        return scores
    if position == "residual":
        return np.abs(_errors(records))[None, :]
    weights = _exponentials(scores) if link == SOFTMAX else np.clip(scores, 0, SCORE_UNIT)
    total = np.maximum(weights.sum(axis=0), 1)
    return np.asarray(weights * PROBABILITY_UNIT // total)


def score_histogram(records: SiteRecords, query: ScoreHistogram, link: str) -> IntVector:
    """Answer a `ScoreHistogram` query, its update applied: int64 [query.length]."""
    n_curves, n_rows, n_bins = query.shape
    places = positions(records, query.position, link)
    counts = np.zeros((n_curves, n_rows, n_bins), dtype=np.int64)
    for curve in range(n_curves):
        bins = np.searchsorted(query.edges[curve], places[curve], side="left")
        if query.by_label:
            # One curve is about the last class; several are about each class against the rest.
            about = 1 if n_curves == 1 else curve
            bins = bins + n_bins * (records.labels == about)
        counts[curve] = np.bincount(bins, minlength=n_rows * n_bins).reshape(n_rows, n_bins)
    parts = [counts.ravel()]
    if query.with_hits:
        hit = places.argmax(axis=0) == records.labels if link != SOFTMAX else records.scores.argmax(0) == records.labels
        parts.append(np.bincount(hit.astype(np.int64), minlength=2).astype(np.int64))
    return np.asarray(np.concatenate(parts) * query.unit, dtype=np.int64)


def error_moments(records: SiteRecords, query: ErrorMoments) -> IntVector:
    """Answer an `ErrorMoments` query, its update applied: int64 [4]; every product is rounded to the nearest unit."""
    labels, clip, unit = records.labels.astype(np.int64), query.error_clip, query.unit
    errors = np.minimum(np.abs(_errors(records)), clip)
    first = (labels * unit + SCORE_UNIT // 2) // SCORE_UNIT
    second = (labels * labels * unit + SCORE_UNIT**2 // 2) // SCORE_UNIT**2
    squared = (errors * errors * unit + clip * clip // 2) // (clip * clip)
    return np.array([unit * len(labels), first.sum(), second.sum(), squared.sum()], dtype=np.int64)


def _errors(records: SiteRecords) -> NDArray[np.int64]:
    return np.asarray(np.clip(records.scores[0].astype(np.int64), -SCORE_UNIT, SCORE_UNIT) - records.labels)


def _exponentials(scores: NDArray[np.int64]) -> NDArray[np.int64]:
    """exp of the scores less the largest of each record, in units of 2**-30, in steps of 2**-10 of the score."""
    below = (scores.max(axis=0) - scores) >> _EXP_STEP_BITS
    table = np.rint(PROBABILITY_UNIT * exponentials(_EXP_STEPS, 2**10)).astype(np.int64)
    return np.asarray(table[np.minimum(below, _EXP_STEPS - 1)], dtype=np.int64)
