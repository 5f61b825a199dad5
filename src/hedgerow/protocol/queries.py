# SPDX-License-Identifier: Apache-2.0
"""Queries: questions that every node answers with one vector of integers.

A program yields queries; the sum of the nodes' vectors, with noise, is what it receives. A query says everything that a
node needs to answer it and everything that the coordinator needs to noise it: its length, the largest magnitude of one
record's contribution to one entry, and the squared L2 sensitivity in integer units.

A kind of query is a class, and its name is the class's: ledgers have it, and policies may allow or refuse it. Kinds
stand beside what answers them, in `trees` or in the folder of their method. A kind says by its base which noise it has:
Gaussian (`Query`), Gaussian over secret samples (`SampledQuery`), Gaussian of each site by itself (`SiteQuery`),
Laplace (`PureQuery`), or a choice by the exponential mechanism (`Choice`). A kind's methods define the rest: a site's
answer, further facts that the answer depends on, and the releases that cannot be sums over records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.codec import IntVector as IntVector
from hedgerow.errors import RemoteProtocolError


@dataclass(frozen=True)
class Purpose:
    """The purpose of a query. Each purpose is released at most once in a run.

    Attributes:
        round: 0-based number of the round within the run.
        kind: the kind of the query.
        subject: its subject, such as "trees 0-24".
    """

    round: int
    kind: str
    subject: str

    def __str__(self) -> str:
        return f"{self.round}/{self.kind}/{self.subject}"


@dataclass(frozen=True)
class NoiseCohort:
    """The sites of a sum with sites' noise, and the numbers by which its noise is counted.

    Attributes:
        n_sites: members, also those that fall silent later, >= 1.
        n_colluders: number of members that may work together against the others' rows, 0 to n_sites - 1.
        n_shares: shares of noise that are in every sum over them and unknown to the colluders: 1 to n_sites -
            n_colluders.

    Raises:
        ValueError: a number is out of range.
    """

    n_sites: int
    n_colluders: int
    n_shares: int

    def __post_init__(self) -> None:
        numbers = (self.n_sites, self.n_colluders, self.n_shares)
        is_possible = all(type(number) is int for number in numbers) and self.n_colluders >= 0 and self.n_shares >= 1
        if not is_possible or self.n_shares > self.n_sites - self.n_colluders:
            raise ValueError(f"no cohort has {self}")

    def to_dict(self) -> dict[str, int]:
        """Return the cohort as a dictionary of JSON values."""
        return {"sites": self.n_sites, "colluders": self.n_colluders, "shares": self.n_shares}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoiseCohort:
        """Read a cohort from `to_dict`; raise KeyError or ValueError."""
        return cls(data["sites"], data["colluders"], data["shares"])


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """The public structures of B complete trees of one depth, over grid codes.

    A record goes left at an internal node iff ``goes_left[tree, node, code]`` for its code of ``feature[tree, node]``.
    Nodes are numbered as in a heap: the children of i are 2i+1 (left) and 2i+2; leaf l is node l + 2**depth - 1.

    Attributes:
        feature: int32 [B, 2**depth - 1], the feature of each internal node.
        goes_left: uint8 [B, 2**depth - 1, n_codes], 1 where a code goes left.
        threshold: int32 [B, 2**depth - 1]: for a split of ordered codes, the last code that goes left; -1 for one by
            sets of categories.
    """

    feature: NDArray[np.int32]
    goes_left: NDArray[np.uint8]
    threshold: NDArray[np.int32]

    @property
    def n_trees(self) -> int:
        return int(self.feature.shape[0])

    @property
    def depth(self) -> int:
        return int(self.feature.shape[1] + 1).bit_length() - 1

    @property
    def n_leaves(self) -> int:
        return int(self.feature.shape[1]) + 1


@dataclass(frozen=True, eq=False)
class FittedTrees:
    """Structures with values: the trees that a round adds to every record's scores.

    Attributes:
        trees: the structures.
        values: int32 [B, n_leaves, n_outputs], in units of 2**-16 score.
    """

    trees: TreeBatch
    values: NDArray[np.int32]


def refuse_query(reason: str, code: str = "query-refused") -> RemoteProtocolError:
    """Return the error for a query that a node does not answer."""
    return RemoteProtocolError("query-refused", code=code, reason=reason)


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """One question to every node; the noise of its sum is Gaussian.

    Attributes:
        purpose: its purpose.
        length: entries of the answer.
        bound: the largest magnitude that one record adds to one entry, in integer units.
        sensitivity_squared: the largest squared L2 norm of one record's contribution, in integer units.
        noise_multiplier: standard deviation of the noise per unit of L2 sensitivity.
        update: trees fitted since the last query, to be added to the scores before answering; or None.
        ensemble_size: trees already in the scores before `update`; a node with another number has missed a round.
        new_edges: if features were cut again since the last query, the edges of all features that ever were, float32 by
            feature; the update and all later queries refer to the cells between them. Empty if nothing changes.
    """

    purpose: Purpose
    length: int
    bound: int
    sensitivity_squared: int
    noise_multiplier: float
    update: FittedTrees | None = None
    ensemble_size: int = 0
    new_edges: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def release_length(self) -> int:
        """Entries of the release: those of the sum, unless something is computed from the sum first."""
        return self.length

    is_pure: ClassVar[bool] = False
    """Whether its releases are of pure differential privacy. Further steps compute with such sums, so no entry is
    clipped."""
    is_choice: ClassVar[bool] = False
    """Whether a choice is released instead of the sum."""

    @property
    def is_sampled(self) -> bool:
        """Whether the sum is over a sample of the records, drawn for this query alone."""
        return False

    @classmethod
    def purpose_of(cls, round_number: int, subject: str) -> Purpose:
        """Return a purpose of this kind, in the round of that number."""
        return Purpose(round_number, cls.__name__, subject)

    def answer(self, site: Any) -> IntVector:
        """Apply the update, then return the sum over a site's rows: int64 [length].

        Args:
            site: a `hedgerow.trees.leaf_sums.ScoredSite`, whose scores the update changes.

        Raises:
            RemoteProtocolError: code "unknown-query-kind", if a kind does not override this.
        """
        raise refuse_query(f"its kind, {type(self).__name__}, is unknown", "unknown-query-kind")

    def miss(self, site: Any) -> None:
        """Take the update into a site that has missed the round.

        Only queries of a method that declares so (`Method.keeps_accounts`) may do more here.
        """
        site.take_in(self.update)

    def left_open(self) -> bytes:
        """Return facts that the answer depends on beyond task, releases and purpose; usually nothing.

        These are results of floating point, which another machine may round differently: unlike answers must not be
        summed.
        """
        return b""

    def faults(self, released: Any, facts: Any, checks: Any) -> Iterator[str]:
        """Yield the reasons why a release cannot be a sum over records.

        See `hedgerow.trees.plausibility`. A check that no entry exceeds what the rows allow is made for all kinds; this
        method adds the checks of one kind.

        Args:
            released: float64 [release_length], its noise included.
            facts: a `SumFacts`.
            checks: the `ReleaseChecks` of the run.
        """
        return iter(())


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteQuery(Query):
    """A query in which each site has entries of its own, zero elsewhere, and adds the whole noise itself.

    So the promise for a site's rows rests on its own noise, whoever adds the noise to other releases, and whether or
    not masks hide its vector. All parties recognize such a query by this class.

    Attributes:
        sites: the site of each block of entries, in order, all different; blocks have equal lengths.
    """

    sites: tuple[str, ...] = ()

    def answer_alone(self, site: Any) -> IntVector:
        """Return the site's own block without noise: int64 [length / n_sites].

        The block alone is no vector of the query.

        Args and raises: as `Query.answer`, which this class leaves unsupported.
        """
        raise refuse_query(f"its kind, {type(self).__name__}, is unknown", "unknown-query-kind")

    def place(self, name: str, block: IntVector | None) -> IntVector:
        """Return the vector of site `name`: its noisy block at the site's entries, zeros everywhere else.

        The vector is all zeros if the block is None, or if the site has no entries in it.
        """
        vector = np.zeros((len(self.sites), self.length // len(self.sites)), dtype=np.int64)
        if block is not None and name in self.sites:
            vector[self.sites.index(name)] = block
        return vector.ravel()


FILTER_UNITS = 2**52
"""A filter's whole budget in the units of `FilterTerms.costs`."""


@dataclass(frozen=True, eq=False)
class FilterTerms:
    """The charges of a node's individual Renyi filter for one round, whether or not a record is drawn.

    Attributes:
        order: order of the divergences.
        budget: largest sum of divergences of one record over all rounds.
        costs: int64 [n_levels], ascending: the divergence of a record whose gradient statistic has a magnitude of up to
            the level's upper end, in units of budget / FILTER_UNITS, rounded up (`hedgerow.methods.s_gbdt.trees`).
        limit: the most that a record may have spent after this round, in the same units: FILTER_UNITS is the whole
            budget, and the difference is kept for later rounds.
    """

    order: int
    budget: float
    costs: NDArray[np.int64]
    limit: int


SAMPLING_STEPS = 2**32
"""Denominator of sampling rates: a record is drawn with probability `sampling_threshold` / SAMPLING_STEPS."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledQuery(Query):
    """A query whose sum is over a secret Poisson sample of the records that each node's filter admits.

    Attributes:
        sampling_threshold: a record is in the sum with probability sampling_threshold / SAMPLING_STEPS.
        filter: the charges of the individual filter; None without a filter.
    """

    sampling_threshold: int
    filter: FilterTerms | None

    @property
    def is_sampled(self) -> bool:
        return True

    @property
    def sampling_rate(self) -> float:
        """The exact probability that a record is drawn."""
        return self.sampling_threshold / SAMPLING_STEPS


MAX_SCORE = 2**61
"""Bound on the scores of a choice, whatever the sums are: an exact sum can never make a choice fail."""


@dataclass(frozen=True)
class PureNoise:
    """The noise that makes a release epsilon-DP with epsilon = sensitivity / scale, before sampling.

    Attributes:
        scale: scale of the noise, in integer units; 0 without privacy.
        sensitivity: for sums the L1 norm that one unit adds at most; for a choice the range over which it can move the
            scores.
        sampling_threshold: each record is in the sum with probability sampling_threshold / SAMPLING_STEPS, drawn by its
            node in secret, again for every query.
    """

    scale: int
    sensitivity: int
    sampling_threshold: int = SAMPLING_STEPS

    @property
    def sampling_rate(self) -> float:
        """The exact probability that a record is drawn."""
        return self.sampling_threshold / SAMPLING_STEPS


@dataclass(frozen=True, kw_only=True, eq=False)
class PureQuery(Query):
    """A query with Laplace noise on its sum, by `pure`."""

    pure: PureNoise
    is_pure: ClassVar[bool] = True

    @property
    def is_sampled(self) -> bool:
        return self.pure.sampling_threshold < SAMPLING_STEPS


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice(PureQuery):
    """A query that releases a choice of the exponential mechanism, by scores from the exact sum."""

    is_choice: ClassVar[bool] = True

    def candidates(self, total: IntVector) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return each choice's candidates (int64 [n]) and scores (int64 [n]), from the sum, int64 [length].

        Raises:
            RemoteProtocolError: as `answer`, if a kind does not override this.
        """
        raise refuse_query(f"its kind, {type(self).__name__}, is unknown", "unknown-query-kind")
