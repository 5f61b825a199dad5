"""The node's side of an evaluation: held-out rows, the model's scores for them, and histograms that leave."""

from __future__ import annotations

import os

import numpy as np

from hedgerow.client.local_noise import noise_of_site
from hedgerow.client.node import check_data
from hedgerow.data.site_data import SiteData
from hedgerow.errors import RemoteProtocolError
from hedgerow.evaluation.sums import error_moments, score_histogram
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource, SystemNoise
from hedgerow.protocol.queries import ErrorMoments, IntVector, Query, ScoreHistogram
from hedgerow.trees.ensemble import link_of
from hedgerow.trees.leaf_sums import SiteRecords, apply_update

LARGEST_ERROR = 2**17


class EvaluationNode:
    """One site of an evaluation; it answers `ScoreHistogram` and `ErrorMoments` and nothing else.

    Args:
        site: the site's name.
        data: its held-out rows.
        plan: the plan of the model.
        n_threads: threads to predict with.
        noise: where the records' noise comes from in the local model; None for the operating system.

    Raises:
        DataError: for codes or labels outside the plan.
    """

    def __init__(
        self, site: str, data: SiteData, plan: Plan, n_threads: int = 1, noise: NoiseSource | None = None
    ) -> None:
        check_data(site, data, plan)
        self.site = site
        self._plan = plan
        self._link = link_of(plan)
        self._n_threads = n_threads
        self._noise = noise or SystemNoise(os.urandom)
        self._ensemble_size = 0
        scores = np.zeros((plan.label.n_outputs, data.n_records), dtype=np.int32)
        self._records = SiteRecords(data.codes, data.labels, scores)

    def answer(self, query: Query) -> IntVector:
        """The site's vector for a query: int64 [query.length].

        Raises:
            RemoteProtocolError: for a query of another kind, of another ensemble size, or that claims less sensitivity
                than one unit's contribution has.
        """
        if not isinstance(query, ScoreHistogram | ErrorMoments):
            raise _refused(f"a {type(query).__name__} query has no place in an evaluation")
        self._check(query)
        self.finish(query)
        if isinstance(query, ErrorMoments):
            sums = error_moments(self._records, query)
        else:
            sums = score_histogram(self._records, query, self._link)
        if self._plan.privacy.noise == "local":
            sums = sums + noise_of_site(query, self.site, self._records.n_records, self._noise)
        return sums

    def finish(self, query: Query) -> None:
        """Take in a query's trees without answering it; for a node that missed the round."""
        if query.ensemble_size != self._ensemble_size:
            raise _refused(f"the query builds on {query.ensemble_size} trees; the scores hold {self._ensemble_size}")
        if query.update is not None:
            apply_update(self._records, query.update, self._n_threads)
            self._ensemble_size += query.update.trees.n_trees

    def _check(self, query: ScoreHistogram | ErrorMoments) -> None:
        """The numbers that the noise is calibrated by follow from the query; a node believes only its own."""
        label, rows = self._plan.label, self._plan.privacy.rows_per_unit
        if isinstance(query, ErrorMoments):
            fits = label.type == "regression" and 1 <= query.error_clip <= LARGEST_ERROR and query.length == 4
            norm_squared = 4
        else:
            expected = {"binary": "score", "multiclass": "probability", "regression": "residual"}[label.type]
            n_curves, n_rows, n_bins = query.shape
            fits = query.position == expected and n_curves == label.n_outputs
            fits = fits and not (label.type == "regression" and (query.by_label or query.with_hits))
            fits = fits and query.length == n_curves * n_rows * n_bins + 2 * query.with_hits
            fits = fits and bool((np.diff(query.edges, axis=1) >= 0).all())
            norm_squared = n_curves + query.with_hits
        if not (fits and query.unit >= 1):
            raise _refused("it does not fit the plan's label")
        if query.bound < query.unit or query.sensitivity_squared < norm_squared * query.unit**2 * rows * rows:
            raise _refused("it claims a smaller sensitivity than one unit's contribution has")


def _refused(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"The coordinator's query was refused: {reason}.",
        cause="It runs another version, or evaluates another plan's model.",
        remedy="Install the same version of Hedgerow on both sides and compare the plans' digests.",
        code="evaluation-query-refused",
    )
