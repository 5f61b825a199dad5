# SPDX-License-Identifier: Apache-2.0
"""Queries: questions that every node answers with one vector of integers.

A program yields queries; the sum of the nodes' vectors, with noise, is what it receives. A query says everything that a
node needs to answer it and everything that the coordinator needs to noise it: its length, the largest magnitude of one
record's contribution to one entry, and the squared L2 sensitivity in integer units.

A kind of query is a class, and its name is the class's: ledgers have it, and policies may allow or refuse it. Kinds
stand beside what answers them, in `trees` or in the folder of their method. A kind says by its base which noise it has:
Gaussian (`Query`), Gaussian over secret samples (`SampledQuery`), Gaussian of each site by itself (`SiteQuery`),
Laplace (`PureQuery`), or a choice by the exponential mechanism (`Choice`). The rest of a kind are its methods: what a
site answers, what makes the answer depend on more than its purpose says, and which releases cannot be sums over
records.
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
    """What a query is for. Each purpose is released at most once in a run.

    Attributes:
        round: 0-based number of the round within the run.
        kind: the kind of the query.
        subject: what it is about, e.g. "trees 0-24".
    """

    round: int
    kind: str
    subject: str

    def __str__(self) -> str:
        return f"{self.round}/{self.kind}/{self.subject}"


@dataclass(frozen=True)
class NoiseCohort:
    """The sites that a sum with noise of the sites was agreed among, and what its noise is counted by.

    Attributes:
        n_sites: members, also those that fall silent later, >= 1.
        n_colluders: how many of them may work together against the others' rows, 0 to n_sites - 1.
        n_shares: shares of noise that are in every sum over them, and unknown to so many colluders: 1 to
            n_sites - n_colluders.

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
        """The cohort as a dictionary of JSON values."""
        return {"sites": self.n_sites, "colluders": self.n_colluders, "shares": self.n_shares}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoiseCohort:
        """The inverse of `to_dict`; raises KeyError or ValueError."""
        return cls(data["sites"], data["colluders"], data["shares"])


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """The public structures of B complete trees of one depth, over grid codes.

    A record goes left at an internal node iff ``goes_left[tree, node, code]`` for its code of ``feature[tree, node]``.
    Nodes are numbered as in a heap: the children of i are 2i+1 (left) and 2i+2; leaf l is node l + 2**depth - 1.

    Attributes:
        feature: int32 [B, 2**depth - 1], the feature each internal node asks for.
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
    """Structures with values: what a round adds to every record's scores.

    Attributes:
        trees: the structures.
        values: int32 [B, n_leaves, n_outputs], in units of 2**-16 score.
    """

    trees: TreeBatch
    values: NDArray[np.int32]


def refuse_query(reason: str, code: str = "query-refused") -> RemoteProtocolError:
    """The error of a query that a node does not answer."""
    return RemoteProtocolError("query-refused", code=code, reason=reason)


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """One question to every node; noise of the sum is Gaussian.

    Attributes:
        purpose: what it is for.
        length: entries of the answer.
        bound: the largest magnitude that one record adds to one entry, in integer units.
        sensitivity_squared: the largest squared L2 norm of one record's contribution, in integer units.
        noise_multiplier: standard deviation of the noise per unit of L2 sensitivity.
        update: trees fitted since the last query, to be added to the scores before answering; or None.
        ensemble_size: trees already in the scores before `update`; a node that holds another number has lost a round.
        new_edges: where features were cut again since the last query, the edges of all that ever were, float32 by
            feature; the update and all that follows speak of the cells between them. Empty where nothing changes.
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
        """Entries of what is released: those of the sum, unless something is computed from it in between."""
        return self.length

    is_pure: ClassVar[bool] = False
    """Whether its releases are of pure differential privacy: such sums are computed with, so no entry is clipped."""
    is_choice: ClassVar[bool] = False
    """Whether a choice is released instead of the sum."""

    @property
    def is_sampled(self) -> bool:
        """Whether the sum is over a sample of the records, drawn for this query alone."""
        return False

    @classmethod
    def purpose_of(cls, round_number: int, subject: str) -> Purpose:
        """A purpose of this kind, in the round of that number."""
        return Purpose(round_number, cls.__name__, subject)

    def answer(self, site: Any) -> IntVector:
        """What a site's rows add up to, its update applied first: int64 [length].

        Args:
            site: a `hedgerow.trees.leaf_sums.ScoredSite`, whose scores the update changes.

        Raises:
            RemoteProtocolError: code "unknown-query-kind", for a kind that says no more than this.
        """
        raise refuse_query(f"its kind, {type(self).__name__}, is unknown", "unknown-query-kind")

    def miss(self, site: Any) -> None:
        """What a site does that has missed the round: it takes the update in.

        Only queries of a method that says so (`Method.keeps_accounts`) may do more here.
        """
        site.take_in(self.update)

    def left_open(self) -> bytes:
        """What the answer depends on that the task, the releases so far and the purpose do not fix; usually nothing.

        That is what was computed in floating point, which another machine may round otherwise: sums of unlike answers
        must not be made.
        """
        return b""

    def faults(self, released: Any, facts: Any, checks: Any) -> Iterator[str]:
        """Why a release cannot be a sum over records, one reason after the other; see `hedgerow.trees.plausibility`.

        That no entry is larger than the rows allow is asked of all kinds; here is what one knows besides.

        Args:
            released: float64 [release_length], its noise included.
            facts: a `SumFacts`.
            checks: the `ReleaseChecks` of the run.
        """
        return iter(())


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteQuery(Query):
    """Each site has entries of its own, where its answer holds the whole noise before it leaves, and else 0.

    So the promise for its rows rests on its own noise, whoever adds the noise to other releases, and whether or not
    masks hide its vector. All parties know such a query by this class.

    Attributes:
        sites: whose block of equally many entries is which, all different.
    """

    sites: tuple[str, ...] = ()

    def answer_alone(self, site: Any) -> IntVector:
        """The site's own block without noise, int64 [length / n_sites]: no vector of this query.

        Args and raises: as `Query.answer`, which such a query refuses.
        """
        raise refuse_query(f"its kind, {type(self).__name__}, is unknown", "unknown-query-kind")

    def place(self, name: str, block: IntVector | None) -> IntVector:
        """The vector of a site with this noisy block; empty for None, and for a site that has no entries."""
        vector = np.zeros((len(self.sites), self.length // len(self.sites)), dtype=np.int64)
        if block is not None and name in self.sites:
            vector[self.sites.index(name)] = block
        return vector.ravel()


FILTER_UNITS = 2**52
"""A filter's whole budget in the units of `FilterTerms.costs`."""


@dataclass(frozen=True, eq=False)
class FilterTerms:
    """What a node's individual Renyi filter charges a record for a round, whether or not the record is drawn.

    Attributes:
        order: of the divergences.
        budget: largest sum of divergences of one record over all rounds.
        costs: int64 [n_levels], ascending: the divergence of a record whose gradient statistic has a magnitude of up to
            the level's upper end, in units of budget / FILTER_UNITS, rounded up (`hedgerow.methods.s_gbdt.trees`).
        limit: what a record may have spent after this round, in the same units: FILTER_UNITS is the whole budget, and
            what is missing to it is kept back for later rounds.
    """

    order: int
    budget: float
    costs: NDArray[np.int64]
    limit: int


SAMPLING_STEPS = 2**32
"""A record is drawn with a chance of a query's `sampling_threshold` in so many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledQuery(Query):
    """Its sum is over a Poisson sample that each node draws in secret, of the records that its filter lets through.

    Attributes:
        sampling_threshold: a record is in the sum with a chance of sampling_threshold / SAMPLING_STEPS.
        filter: what the individual filter charges; None without a filter.
    """

    sampling_threshold: int
    filter: FilterTerms | None

    @property
    def is_sampled(self) -> bool:
        return True

    @property
    def sampling_rate(self) -> float:
        """Each record's chance, exactly."""
        return self.sampling_threshold / SAMPLING_STEPS


MAX_SCORE = 2**61
"""Scores of a choice are within this magnitude, whatever the sums are: a choice never fails for an exact sum."""


@dataclass(frozen=True)
class PureNoise:
    """What makes a release epsilon-DP with epsilon = sensitivity / scale, without sampling.

    Attributes:
        scale: of the noise, in integer units; 0 without privacy.
        sensitivity: for sums the L1 norm that one unit adds at most; for a choice the range over which it can move the
            scores.
        sampling_threshold: each record is in the sum with a chance of sampling_threshold / SAMPLING_STEPS, drawn by its
            node in secret, again for every query.
    """

    scale: int
    sensitivity: int
    sampling_threshold: int = SAMPLING_STEPS

    @property
    def sampling_rate(self) -> float:
        """Each record's chance, exactly."""
        return self.sampling_threshold / SAMPLING_STEPS


@dataclass(frozen=True, kw_only=True, eq=False)
class PureQuery(Query):
    """Noise of the sum is Laplace's, by `pure`."""

    pure: PureNoise
    is_pure: ClassVar[bool] = True

    @property
    def is_sampled(self) -> bool:
        return self.pure.sampling_threshold < SAMPLING_STEPS


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice(PureQuery):
    """Released is what the exponential mechanism chooses by scores that follow from the exact sum."""

    is_choice: ClassVar[bool] = True

    def candidates(self, total: IntVector) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each choice its candidates (int64 [n]) and their scores (int64 [n]), from the sum, int64 [length].

        Raises:
            RemoteProtocolError: as `answer`, for a kind that says no more than this.
        """
        raise refuse_query(f"its kind, {type(self).__name__}, is unknown", "unknown-query-kind")
