# SPDX-License-Identifier: Apache-2.0
"""The questions of a survey, and the budget that they share.

    stage    query            what for                                                      plan     table
    records  RecordCount      about how many records                                        0.0025   0.01
    kinds    KindCounts       what columns are of which that is not declared; missing cells 0.01     0.05
    octaves  OctaveCounts     bounds of numbers and dates                                   0.0335   0.14
    zoom     ZoomCounts       up to three times, of columns that lie far from zero          0.0047   0.02 each
    label octaves  OctaveCounts  the range of a label that is a number                      0.04
    label zoom  ZoomCounts    up to three times, of a label that lies far from zero         0.02 each
    pairs    CellCounts       whether a label's classes are a usual pair, such as 0 and 1   0.02
    names    TextVotes        common texts                                                           0.24
    values   ValueCounts      classes of a label that is a whole number                              0.02
    classes  ValueCounts      classes of a label that are whole numbers, or NameVotes       0.02
    cells    CellCounts       histograms and shares of categories                                    0.32
    rates    JointCounts      the label by bin of each column                                        0.16
    curves   SurvivalCounts   survival curves, alone                                        1

For a plan's gaps, each question has a fixed share of mu**2 of the whole promise. The training is calibrated to what is
left (`Plan.prepared`). A zoom that is not needed costs nothing. For a table, the shares are weights: each question
takes its weight's part of the remaining mu**2, relative to all weights that may still follow. What one stage does not
need thus goes to later ones, and the last one spends the rest (to the last digit if the coordinator adds the noise).
Although later noise depends on earlier releases, all mu**2 add up to no more than the whole. This is a filter (Koskela,
Tobaben & Honkela, arXiv 2209.15596, for Gaussian releases; docs/proofs/queries.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from hedgerow.errors import PrivacyError
from hedgerow.plan.plan import Feature
from hedgerow.privacy.calibration import NoiseDemand, calibrate_noise_multiplier, calibrate_sigmas, noise_of
from hedgerow.privacy.events import Event, GaussianEvent, UnnoisedEvent
from hedgerow.privacy.schedule import AlikeRounds, Schedule
from hedgerow.protocol.queries import Purpose
from hedgerow.survey.curves import AskedCurves
from hedgerow.survey.kinds import MAX_FOUND_CLASSES, USUAL_CLASSES
from hedgerow.survey.queries import (
    N_BUCKETS,
    CellCounts,
    JointCounts,
    Kind,
    KindCounts,
    NameVotes,
    OctaveCounts,
    RecordCount,
    SurveyQuery,
    TextBins,
    TextVotes,
    ValueCounts,
    ZoomCounts,
    blank,
    noise_deviation,
)
from hedgerow.survey.statistics import MAX_LISTED_VALUES

USUAL_BINS = TextBins(tuple(dict.fromkeys(word for pair in USUAL_CLASSES for word in pair)))
"""One bin for each class of a usual pair, and one for all others."""
N_ZOOMS = 3
BOUNDS_SHARE = 0.05
"""Share of mu**2 for the number of records and all bounds together."""
COUNT_SHARE = 0.05 * BOUNDS_SHARE
OCTAVES_SHARE = 0.67 * BOUNDS_SHARE
ZOOM_SHARE = (BOUNDS_SHARE - COUNT_SHARE - OCTAVES_SHARE) / N_ZOOMS
LABEL_SHARE, LABEL_ZOOM_SHARE = 0.04, 0.02
"""Shares of mu**2 for the range of a label, in addition to bounds, and for each zoom into it."""
CLASSES_SHARE = 0.02
"""Share of mu**2 for the classes of a label, in addition to bounds: once for usual pairs, and once for other
classes."""
KINDS_SHARE = 0.01
"""Share of mu**2 for the kinds of columns. With d columns some 170 sqrt(d) / epsilon records of a kind are enough (at a
delta of 1e-6), about as many as bounds need; the noise of the training grows by half a percent."""
SHARES = {
    "plan": {
        "records": COUNT_SHARE, "kinds": KINDS_SHARE, "octaves": OCTAVES_SHARE,
        **{f"zoom {number}": ZOOM_SHARE for number in range(N_ZOOMS)}, "label octaves": LABEL_SHARE,
        **{f"label zoom {number}": LABEL_ZOOM_SHARE for number in range(N_ZOOMS)},
        "pairs": CLASSES_SHARE, "classes": CLASSES_SHARE,
    },
    "table": {
        "records": 0.01, "kinds": 0.05, "octaves": 0.14, "zoom 0": 0.02, "zoom 1": 0.02, "zoom 2": 0.02, "names": 0.24,
        "values": 0.02, "cells": 0.32, "rates": 0.16,
    },
    "curves": {"curves": 1.0},
}  # fmt: skip
"""Shares of mu**2, by subject and by stage, in the order of the stages."""
_SLACK, _SLACK_OF_CURVES = 1e-3, 5e-3
"""Share of mu**2 that is kept for rounding to the grid. The last query knows and spends it, unless the sites add the
noise: each site's share is then rounded up by itself."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The questions of a survey, and their price; all public.

    Attributes:
        columns: the features of a plan with gaps, in the order of `RawSite.columns`: a type may be "", and bounds and
            categories may be missing, to find them. A label of whole numbers is a count.
        epsilon, delta, accountant: those of the whole promise; epsilon may be infinite.
        rows_per_unit: most rows of one unit of privacy.
        noise: the party that adds it, as in a plan's `privacy.noise`.
        about: "plan" for the gaps of a plan, whose training has most of the promise, "table", or "curves".
        label: the index of the label, whose classes (or their shares by bin) are asked for; None for none. A plan's
            label is the last column.
        n_records: the declared number, of a plan; None asks for it.
        curves: the curves that are asked for.

    Raises:
        PrivacyError: code "survey-pure", for a promise of pure differential privacy.
    """

    columns: tuple[Feature, ...] = ()
    epsilon: float
    delta: float
    accountant: str = "gdp"
    rows_per_unit: int = 1
    noise: str = "server"
    about: str = "plan"
    label: int | None = None
    n_records: int | None = None
    curves: AskedCurves | None = None

    def __post_init__(self) -> None:
        if self.accountant == "pure":
            raise PrivacyError("survey-pure")

    @property
    def asks_bounds(self) -> bool:
        """Whether a plan's label is a number: its bounds are then asked for, not its classes."""
        return self.label is not None and bool(self.columns[self.label].type)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Indices of a plan's columns of unknown kind, the label included."""
        return tuple(index for index, column in enumerate(self.columns) if not column.type)

    @property
    def surveyed(self) -> tuple[int, ...]:
        """Indices of a plan's features, whose bounds the survey may ask for; the label is not among them."""
        return tuple(index for index in range(len(self.columns)) if index != self.label)

    @cached_property
    def schedule(self) -> Schedule:
        """The queries of a survey and its largest cost.

        How a table's questions share the cost depends on what they find, so the table counts as one release. A stage
        without a question is reserved all the same, so that all parties count the same rounds.

        Raises:
            PrivacyError: epsilon or delta out of range.
        """
        budget, largest = Budget(self), self._largest
        reserved = [] if self.about == "plan" else [stage for stage in SHARES[self.about] if stage not in largest]
        budget.skip(*reserved)
        asked = [AlikeRounds(budget.ask(stage, query), is_exact=True) for stage, query in largest.items()]
        asked += [AlikeRounds(blank(RecordCount))] * len(reserved)
        if self.about == "plan":
            return Schedule(tuple(asked))
        if math.isinf(self.epsilon):
            return Schedule(tuple(asked), (UnnoisedEvent(),))
        whole = calibrate_noise_multiplier(self.epsilon, self.delta, 1.0, self.accountant)
        return Schedule(tuple(asked), (GaussianEvent(whole),))

    @property
    def _largest(self) -> dict[str, SurveyQuery]:
        """The query of each stage, at its largest possible size."""
        if self.curves is not None:
            return {"curves": self.curves.query}
        if self.about == "table":
            return self._largest_of_table()
        queries: dict[str, SurveyQuery] = {}
        if self.n_records is None:
            queries["records"] = blank(RecordCount)
        if self.unknown:
            queries["kinds"] = blank(KindCounts, columns=self.unknown)
        if self.surveyed:
            queries |= _bounds_of(self.surveyed)
        if self.label is not None and self.asks_bounds:
            queries |= {f"label {stage}": query for stage, query in _bounds_of((self.label,)).items()}
        elif self.label is not None:
            queries["pairs"] = blank(CellCounts, columns=(self.label,), bins=(USUAL_BINS,))
            queries["classes"] = blank(NameVotes)
        return queries

    def _largest_of_table(self) -> dict[str, SurveyQuery]:
        columns = tuple(range(len(self.columns)))
        is_text = [column.is_categorical or not column.type for column in self.columns]
        unnamed = tuple(index for index in columns if is_text[index] and not self.columns[index].listed)
        queries: dict[str, SurveyQuery] = {"records": blank(RecordCount)}
        if columns:
            queries |= {"kinds": blank(KindCounts, columns=columns), **_bounds_of(columns)}
        if unnamed:
            queries["names"] = blank(TextVotes, columns=unnamed)
        if self.label is not None:
            queries["values"] = blank(ValueCounts, column=self.label)
        if columns:
            # For an undeclared column, assume the most texts that may be found.
            most = [
                len(column.listed or range(N_BUCKETS)) if may_be_text else 2 * MAX_LISTED_VALUES - 1
                for column, may_be_text in zip(self.columns, is_text, strict=True)
            ]
            bins = tuple(TextBins(("",) * n_bins, 1) for n_bins in most)
            queries["cells"] = blank(CellCounts, columns=columns, bins=bins)
            if self.label is not None:
                classes = TextBins(("",) * MAX_FOUND_CLASSES, 0)
                joint = blank(JointCounts, columns=columns, bins=bins, label=self.label, classes=classes)
                queries["rates"] = joint
        return queries


def _bounds_of(columns: tuple[int, ...]) -> dict[str, SurveyQuery]:
    """Return by stage the queries for the bounds of columns, at their largest possible size."""
    zoom = blank(ZoomCounts, columns=columns, ranges=((0.0, 1.0),) * len(columns))
    return {"octaves": blank(OctaveCounts, columns=columns), **{f"zoom {number}": zoom for number in range(N_ZOOMS)}}


class Budget:
    """The part of mu**2 that each query of a survey spends.

    Args:
        excess: the noise's deviation in the releases divided by the accounted one.

    Raises:
        PrivacyError: epsilon or delta out of range.
    """

    def __init__(self, questions: Questions, excess: float = 1.0) -> None:
        self._questions, self._excess, self.spent = questions, excess, list[Event]()
        is_noisy = not math.isinf(questions.epsilon)
        promise = questions.epsilon, questions.delta, 1.0, questions.accountant
        self._multiplier = calibrate_noise_multiplier(*promise) if is_noisy else 0.0
        self._left = 1.0 - (_SLACK if questions.curves is None else _SLACK_OF_CURVES)
        self._shares = SHARES[questions.about]
        self._open = list(self._shares)

    def reported_deviation(self, query: SurveyQuery) -> float:
        """Return the deviation of the noise of one count for reports; later queries do not depend on it."""
        return self._excess * noise_deviation(query)

    def skip(self, *stages: str) -> None:
        """Skip these stages: their weights go to the others."""
        self._open = [stage for stage in self._open if stage not in stages]

    def ask(self, stage: str, query: Kind) -> Kind:
        """Return the query with its numbers filled in; but for a plan, no earlier stage may be asked afterwards."""
        asked, share, is_part = self._questions, self._shares[stage], self._questions.about == "plan"
        if not is_part:
            self._open = self._open[self._open.index(stage) :]
            share = self._left * share / math.fsum(self._shares[each] for each in self._open)
            self._left = max(0.0, self._left - share)
            self._open.remove(stage)
        filled = replace(
            query,
            purpose=Purpose(len(self.spent), type(query).__name__, f"{'survey' if is_part else 'statistics'}, {stage}"),
            length=query.expected_length(),
            bound=query.largest_entry(),
            sensitivity_squared=query.norm_squared() * asked.rows_per_unit**2,
            noise_multiplier=self._multiplier / math.sqrt(share),
        )
        # The cost of the sites' shares, each rounded up by itself, is not known before, so a little is left unspent
        # there.
        if not self._open and self._multiplier and asked.noise == "server":
            # Give the last query the least noise that the events so far allow, the price of the grid included.
            demand = NoiseDemand(filled.sensitivity_squared, filled.length)
            (sigma,) = calibrate_sigmas(asked.epsilon, asked.delta, [demand], asked.accountant, self.spent)
            filled = replace(filled, noise_multiplier=sigma / math.sqrt(filled.sensitivity_squared))
        self.spent.append(noise_of(filled).event)
        return filled
