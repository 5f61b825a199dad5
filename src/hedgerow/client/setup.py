# SPDX-License-Identifier: Apache-2.0
"""The owner's input to a node, and the node that answers a task over its rows.

Once a run's cost is reserved, `build_answers` reads the rows, at most as many as the roster says, and builds the node
that answers the task's queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hedgerow.client.node import ArrivalFolder, EvaluationNode, Node, RowsOrCells, SamplingSource, make_node
from hedgerow.client.policy import Policy
from hedgerow.client.shards import ShardedNode, Shards
from hedgerow.crypto import Entropy, Identity
from hedgerow.data.binned import SiteData
from hedgerow.data.hashing import hash_rows
from hedgerow.errors import PolicyRefusal, mark_private
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.secagg.messages import Roster
from hedgerow.survey.queries import RawSite, SurveyNode
from hedgerow.survey.requests import OpenTable


def no_held_out_rows(_: Plan) -> SiteData:
    """Raise PolicyRefusal: the owner gave no rows for evaluation."""
    raise PolicyRefusal("policy-no-rows", code="policy-no-held-out", task="an evaluation", option="--held-out TABLE")


def no_training_rows(_: object) -> NoReturn:
    """Raise PolicyRefusal: the owner gave no rows to train on, which surveys use too."""
    raise PolicyRefusal("policy-no-rows", code="policy-no-training", task="training", option="a table to train on")


Answers = Node | ShardedNode | EvaluationNode | SurveyNode
"""A node that answers the queries of a task."""
LoadRows = Callable[[Plan], SiteData | Shards]
"""Reads a site's rows by a plan."""


@dataclass(frozen=True)
class NodeSetup:
    """The owner's input to a node.

    Attributes:
        site: its name in the roster.
        identity: its signing key.
        roster: the roster that it pinned.
        policy: the owner's rules.
        entropy: the source of keys and masks: ``os.urandom`` except in tests.
        noise: the source of its shares of noise.
        load: reads the site's rows for a plan; DataError when they do not fit.
        plan: the only plan that it takes part in; None for the plans whose digests the policy names.
        n_threads: threads to sum with.
        load_held_out: reads the rows on which models are evaluated; by default there are none.
        models: digests of models that the owner allows to evaluate, besides those that this node helped to make.
        sampling: the source of samples, for plans that draw any; None for the operating system.
        arrivals: the folder of rows that arrive while a run goes on; None for none.
        load_raw: reads the raw cells of the rows to train on, for a survey; by default there are none.
        tell: called with a sentence for the owner only.
    """

    site: str
    identity: Identity
    roster: Roster
    policy: Policy
    entropy: Entropy
    noise: NoiseSource
    load: LoadRows
    plan: Plan | None = None
    n_threads: int = 1
    load_held_out: LoadRows = no_held_out_rows
    models: frozenset[bytes] = frozenset()
    sampling: SamplingSource | None = None
    arrivals: ArrivalFolder | None = None
    load_raw: Callable[[OpenTable], RawSite | Shards] = no_training_rows
    tell: Callable[[str], object] = lambda text: None

    @property
    def max_rows(self) -> int:
        """The most rows of this site according to the roster; 0 if the roster does not say."""
        return self.roster.find_max_rows(self.site)


# The rows --------------------------------------------------------------------------------------------------------


def select_rows(columns: Iterable[NDArray[Any]], n_rows: int, most: int) -> NDArray[np.intp]:
    """Choose the rows to use if a site has more than it declares: those with the least content hashes.

    The rule is public and depends on contents only: equal rows are interchangeable. One row more or less moves at most
    one other row in or out. So a unit moves sums by no more than one unit that is *replaced* by another.

    Args:
        columns: columns of numbers, each [n_rows].
        most: >= 0.

    Returns: intp [min(n_rows, most)], in increasing order.
    """
    return np.sort(np.argsort(hash_rows(columns, n_rows), kind="stable")[:most])


def tell_about_more_rows(setup: NodeSetup, n_rows: int) -> bool:
    """Tell the owner if there are more rows than the roster says; return whether there are."""
    is_more = 0 < setup.max_rows < n_rows
    if is_more:
        said = (
            f"This site has {n_rows:,} rows; the roster says that it has at most {setup.max_rows:,}. So many are used, "
            "chosen by a public rule. For their units the promise is that of replacing one by another: twice mu. Give "
            "fewer rows, or agree on a roster with a larger number"
        )
        setup.tell(mark_private(said, "rows-beyond-declared"))
    return is_more


def limit_rows(setup: NodeSetup, rows: RowsOrCells) -> RowsOrCells:
    """Return at most as many rows as the roster says (`select_rows`); tell only the owner of more."""
    if not tell_about_more_rows(setup, rows.n_records):
        return rows
    return rows.only(select_rows(rows.list_contents(), rows.n_records, setup.max_rows))


def build_answers(task: Task, setup: NodeSetup) -> tuple[Answers, bytes]:
    """Read a task's rows; return the node that answers its queries, and the rows' digest.

    Raises DataError.
    """
    if isinstance(task, SurveyTask):
        rows: RowsOrCells | Shards = setup.load_raw(task.asked)
    else:
        rows = (setup.load_held_out if isinstance(task, EvaluationTask) else setup.load)(task.plan)
    if isinstance(rows, Shards):
        tell_about_more_rows(setup, rows.n_records)
        # Set the limit even if there are fewer rows: a lost part may have more when it is read again.
        rows.limit(setup.max_rows)
        rows.tell = setup.tell
        return ShardedNode(setup.site, rows, task, setup.noise, shows=setup.policy.shows_figures), rows.digest
    own = limit_rows(setup, rows), task, setup.n_threads, setup.sampling, setup.noise
    return make_node(setup.site, *own, shows=setup.policy.shows_figures), rows.digest()


def read_early(load: LoadRows, plan: Plan | None) -> LoadRows:
    """Read the rows of `plan` now, and return a `load` that reuses them.

    Raises DataError if the rows do not fit. An unusable table is for the owner alone to hear of, and at once: the node
    does not dial then.
    """
    if plan is None:
        return load
    rows = load(plan)
    return lambda offered: rows if offered.is_run_of(plan) else load(offered)
