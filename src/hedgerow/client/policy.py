"""What a site's owner allows, whatever a coordinator proposes, and how its rows are read for a task.

The owner's policy is a TOML file that never leaves the site.

`read_task` reads an invitation, and `check_task` asks the owner's plan and policy of it. What the node has done before
is asked in `client.joining`. Only then, with the cost reserved, does `answering_node` read the rows.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hedgerow.client.node import ArrivalFolder, EvaluationNode, Node, SamplingSource, select_rows
from hedgerow.crypto import Identity
from hedgerow.data.adapters import PLAIN, Adapter, adapter
from hedgerow.data.fit import TableFit
from hedgerow.data.raw_cells import digest_raw_rows
from hedgerow.data.site_data import SiteData
from hedgerow.errors import HedgerowError, PlanError, PolicyRefusal, RemoteProtocolError, UsageError
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, survey_task
from hedgerow.plan.fields import (
    MOST_VALUES,
    allows,
    boolean,
    define_field,
    distinct_texts,
    integer,
    number,
    one_of,
    read_json,
    read_section,
    read_toml,
    refuse,
    some_of,
    text,
)
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.protocol.messages import EvaluationInvitation, Invitation, SurveyInvitation
from hedgerow.protocol.queries import Query
from hedgerow.secagg.messages import NodePolicy, Roster
from hedgerow.secagg.transitions import Entropy
from hedgerow.survey.queries import Column, RawSite, SurveyNode
from hedgerow.survey.requests import Asked
from hedgerow.transport.identities import format_spoken

POLICY_VERSION = 1
NOISE = ("server", "distributed", "local")
DEFAULT_NOISE = ("distributed",)
"""Not "server", which trusts the coordinator with exact sums, nor "local", which takes the number of a site's rows to
be known: an owner who agrees to either says so.
"""


@allows({"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}, "uniqueItems": True})
def _plan_digests(value: object, path: str) -> tuple[str, ...]:
    """A list of distinct digests of plans, 64 hexadecimal digits each."""
    digests = tuple(digest.lower() for digest in distinct_texts(value, path))
    for digest in digests:
        if re.fullmatch("[0-9a-f]{64}", digest) is None:
            raise refuse(
                path, digest, "digests of plans, 64 hexadecimal digits each, as `hedgerow privacy PLAN` prints"
            )
    return digests


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The owner's rules: the fields of the file.

    Attributes:
        version: of the file's format.
        data_set: what the budget is counted for: one name for one body of data, for ever.
        max_epsilon: over the data set's whole life, all runs together.
        delta: at which that epsilon is counted.
        min_sites: least sites in a run's roster and in an epoch.
        unit: whom runs must protect: this column's units, or "record"; without it either.
        features: columns that runs may use; without it all.
        labels: columns that runs may predict; without it all.
        query_kinds: kinds of sums that may be asked for; without it all.
        plans: digests of plans to take part in, as `hedgerow privacy` prints them; without it the one of --plan.
        noise: who may add the noise: "server", "distributed", "local"; without it the sites only. "server" trusts the
            coordinator with exact sums.
        evaluation_noise: the same for evaluations of models; without it the sites only.
        surveys: whether coordinators may ask for bounds, classes and statistics of the columns above, with the noise
            above, before there is a plan.
        min_colluders: sites, besides the coordinator, that may collude.
        requires_echo: whether nodes must compare what the coordinator told each of them.
        ask: "always": no answer to a run before the owner has approved it.
        monitors: "any": the coordinator may add parties that watch, and nothing else.
        coordinators: Ed25519 keys of coordinators, in hexadecimal; without it the roster's.
        rows_that_do_not_fit: "refuse": such a row keeps the node from starting, which tells the others that there is
            one.
        max_unlisted: the largest share of a column's cells that the plan may not list: with more the node does not
            start.
        max_clamped: the same for cells beyond a column's bounds.
        refuse_loss: the same for rows that would be left out. That a site is away then follows from its rows, which no
            guarantee covers.
        data: how this site writes its tables, a table [data] of its own.
    """

    version: int = define_field(integer(1, POLICY_VERSION))
    data_set: str = define_field(text)
    max_epsilon: float = define_field(number(0, math.inf))
    delta: float = define_field(number(0, 1, exclusive=True))
    min_sites: int = define_field(integer(1, 4096), 3)
    unit: str = define_field(text, "")
    features: tuple[str, ...] = define_field(distinct_texts, ())
    labels: tuple[str, ...] = define_field(distinct_texts, ())
    query_kinds: tuple[str, ...] = define_field(distinct_texts, ())
    plans: tuple[str, ...] = define_field(_plan_digests, ())
    noise: tuple[str, ...] = define_field(some_of(*NOISE), ())
    evaluation_noise: tuple[str, ...] = define_field(some_of(*NOISE), ())
    surveys: bool = define_field(boolean, False)
    min_colluders: int = define_field(integer(0, 4096), 1)
    requires_echo: bool = define_field(boolean, False)
    ask: str = define_field(one_of("never", "always"), "never")
    monitors: str = define_field(one_of("pinned", "any"), "pinned")
    coordinators: tuple[str, ...] = define_field(distinct_texts, ())
    rows_that_do_not_fit: str = define_field(one_of("leave-out", "refuse"), "leave-out")
    max_unlisted: float = define_field(number(0, 1), 1.0)
    max_clamped: float = define_field(number(0, 1), 1.0)
    refuse_loss: float = define_field(number(0, 1), 1.0)
    data: Adapter = define_field(adapter, PLAIN)  # noqa: RUF009 (frozen, like the others' defaults)

    @property
    def is_strict(self) -> bool:
        """Whether one row that does not fit, or a table without rows, keeps the site out of a run."""
        return self.rows_that_do_not_fit == "refuse"

    @property
    def asks(self) -> bool:
        """Whether the owner is asked before the node answers an invitation; see `hedgerow.app.owner`."""
        return self.ask == "always"

    @property
    def limits_fit(self) -> bool:
        """Whether it depends on the rows that are there if the node starts; see `check_fit`."""
        return min(self.max_unlisted, self.max_clamped, self.refuse_loss) < 1

    @property
    def noise_of_evaluations(self) -> tuple[str, ...]:
        """Who may add the noise to evaluations; "local" where training may have it, for it asks for less trust."""
        also = ("local",) if "local" in self.noise and "local" not in self.evaluation_noise else ()
        return (*(self.evaluation_noise or DEFAULT_NOISE), *also)

    @property
    def secure_sums(self) -> NodePolicy:
        """The same rules, as secure aggregation checks them."""
        return NodePolicy(
            min_cohort=self.min_sites,
            min_colluders=self.min_colluders,
            # A sum holds three vectors at least, unless the owner wants less; and behind those of the colluders, one
            # besides one's own.
            min_honest_survivors=min(self.min_sites, max(2, 3 - self.min_colluders)),
            min_honest_group=min(2, self.min_sites),
            requires_echo=self.requires_echo,
            # A run has the noise of its task, which is checked by itself.
            refuses_server_noise="server" not in (*(self.noise or DEFAULT_NOISE), *self.noise_of_evaluations),
        )

    def beyond_defaults(self, plan: Plan) -> list[str]:
        """The lines by which it allows more, or tells others more, than a policy for this plan that says none of them.

        Noise is not among them: an owner is asked for it in words.
        """
        usual = Policy(version=self.version, data_set=self.data_set, max_epsilon=self.max_epsilon, delta=self.delta)
        wider = {
            "min_sites": self.min_sites < usual.min_sites,
            "min_colluders": self.min_colluders < usual.min_colluders,
            "surveys": self.surveys,
            "monitors": self.monitors != usual.monitors,
            # Whether the node takes part would follow from its rows.
            "rows_that_do_not_fit": self.is_strict,
            **{name: getattr(self, name) < 1 for name in ("max_unlisted", "max_clamped", "refuse_loss")},
            # An epsilon that is counted at a larger delta is a smaller number.
            "delta": self.delta > plan.privacy.delta,
            "max_epsilon": math.isinf(self.max_epsilon),
        }
        return [f"{name} = {getattr(self, name)}" for name, is_wider in wider.items() if is_wider]

    def check_roster(self, roster: Roster) -> None:
        """Raise PolicyRefusal: policy-coordinator, policy-small-cohort."""
        if self.coordinators and roster.coordinator.hex() not in self.coordinators:
            raise PolicyRefusal("policy", code="policy-coordinator", asked="the coordinator of this roster")
        if len(roster.sites) < self.min_sites:
            raise PolicyRefusal("policy-small-cohort", n_roster=len(roster.sites), least=self.min_sites)

    def check_plan(self, plan: Plan, epsilon: float | None = None, evaluation_noise: str | None = None) -> None:
        """Raise PolicyRefusal; its code says which rule the plan breaks.

        Args:
            epsilon: what the run may cost; None for the plan's, other for the evaluation of the plan's model.
            evaluation_noise: who adds the noise to such an evaluation; None for training.
        """
        beyond = _beyond(plan.feature_names, self.features)
        if beyond:
            raise PolicyRefusal("policy", code="policy-feature", asked=f"the column {beyond[0]!r}, which the plan uses")
        beyond = _beyond(plan.label.columns, self.labels)
        if beyond:
            raise PolicyRefusal("policy", code="policy-label", asked=f"predictions of {beyond[0]!r}")
        if evaluation_noise is not None and evaluation_noise not in self.noise_of_evaluations:
            said = f"The coordinator asks for an evaluation with {evaluation_noise} noise"
            raise noise_refusal(said, evaluation_noise, "evaluation_noise")
        if evaluation_noise is None and plan.privacy.noise not in (self.noise or DEFAULT_NOISE):
            raise noise_refusal(f"The plan wants {plan.privacy.noise} noise", plan.privacy.noise, "noise")
        if self.unit and plan.privacy.unit != self.unit:
            # An epsilon for each record is a weaker promise to somebody with many records.
            asked = f"to protect each {plan.privacy.unit}; it wants each {self.unit} protected"
            raise PolicyRefusal("policy", code="policy-unit", asked=asked)
        own = math.inf if plan.reads_quantiles else plan.privacy.epsilon
        wanted = own if epsilon is None else epsilon
        if math.isinf(wanted) and not math.isinf(self.max_epsilon):
            raise PolicyRefusal("policy", code="policy-unnoised", asked="sums without noise")
        if not plan.federation.secure_aggregation:
            raise PolicyRefusal(
                "policy", code="policy-clear-sums", asked="sums in the clear; over a network there are none"
            )

    def check_fit(self, found: TableFit) -> None:
        """Raise PolicyRefusal: policy-loss, policy-clamped, policy-unlisted. For the owner alone: it tells of rows."""
        if found.rows.share_left_out > self.refuse_loss:
            raise PolicyRefusal("policy-loss", rows=found.rows.text(), most=f"{self.refuse_loss:.0%}")
        for column in found.columns:
            if column.clamped > self.max_clamped:
                raise PolicyRefusal(
                    "policy-clamped", column=column.name, share=f"{column.clamped:.2%}", most=f"{self.max_clamped:.2%}"
                )
            if column.not_listed > self.max_unlisted:
                share, most = f"{column.not_listed:.2%}", f"{self.max_unlisted:.2%}"
                raise PolicyRefusal("policy-unlisted", column=column.name, share=share, most=most)

    def check_kinds(self, task: Task) -> None:
        """Raise PolicyRefusal (code "policy-query-kind") for a task that would ask for a kind that is not allowed.

        Asked before anything is reserved. What a survey asks more, by what it finds, `check_query` alone refuses.
        """
        if self.query_kinds:
            for kind in task.schedule.kinds:
                self._require_kind(kind)

    def check_query(self, query: Query) -> None:
        """Raise PolicyRefusal: policy-query-kind or policy-unnoised."""
        self._require_kind(query.purpose.kind)
        if query.noise_multiplier == 0 and not math.isinf(self.max_epsilon):
            raise PolicyRefusal("policy", code="policy-unnoised", asked="a sum without noise")

    def _require_kind(self, kind: str) -> None:
        if _beyond([kind], self.query_kinds):
            raise PolicyRefusal("policy", code="policy-query-kind", asked=f"queries of the kind {kind}")


def parse_policy(toml_text: str) -> Policy:
    """Read a policy from the text of its file.

    Raises:
        UsageError: code "policy-file": it is not TOML, or a field is missing, unknown or wrong.
    """
    try:
        table = read_toml(toml_text)
        if "version" not in table:
            raise PlanError("plan-missing-version", newest=POLICY_VERSION)
        return read_section(Policy, table, "policy")
    except PlanError as error:
        raise UsageError("policy-file", what=error.what, cause=error.cause, remedy=error.remedy) from None
    except ValueError as error:
        raise UsageError("not-toml", code="policy-file", name="The policy", fault=error) from None


def noise_refusal(what: str, noise: str, line: str) -> PolicyRefusal:
    """The refusal of noise that a policy does not name; `line` is the policy's line that would allow it."""
    return PolicyRefusal(
        "policy-noise-server" if noise == "server" else "policy-noise-local" if noise == "local" else "policy-noise",
        what=what,
        noise=noise,
        line=line,
    )


def _beyond(wanted: Iterable[str], allowed: tuple[str, ...]) -> list[str]:
    """What is wanted and not allowed; an empty list of what is allowed allows everything."""
    return [name for name in wanted if allowed and name not in allowed]


# What a node is given -------------------------------------------------------------------------------------------------


def no_held_out_rows(_: Plan) -> SiteData:
    """Raise PolicyRefusal: the owner gave no rows to evaluate on."""
    raise PolicyRefusal("policy-no-rows", code="policy-no-held-out", task="an evaluation", option="--held-out TABLE")


def no_training_rows(_: Plan) -> SiteData:
    """Raise PolicyRefusal: the owner gave no rows to train on."""
    raise PolicyRefusal("policy-no-rows", code="policy-no-training", task="training", option="a table to train on")


def no_raw_rows(_: Asked) -> RawSite:
    """Raise PolicyRefusal: the owner gave no rows to train on, which surveys are asked about."""
    raise PolicyRefusal("policy-no-rows", code="policy-no-training", task="training", option="a table to train on")


Answers = Node | EvaluationNode | SurveyNode
"""What answers the queries of a task."""


@dataclass(frozen=True)
class NodeSetup:
    """What a node's owner gives it.

    Attributes:
        site: its name in the roster.
        identity: its signing key.
        roster: the roster that it pinned.
        policy: the owner's rules.
        entropy: the source of keys and masks: ``os.urandom`` but in tests.
        noise: the source of its shares of noise.
        load: reads the site's rows for a plan; DataError when they do not fit.
        plan: the only plan that it takes part in; None for those whose digests the policy names.
        n_threads: threads to sum with.
        load_held_out: reads the rows on which models are evaluated; by default there are none.
        models: digests of models that the owner lets be evaluated, besides those that this node helped to make.
        sampling: where samples come from, for plans that draw any; None for the operating system.
        arrivals: where rows come from while a run goes on; None for nowhere.
        load_raw: reads the raw cells of the rows to train on, for a survey; by default there are none.
        tell: takes a sentence that is for the owner alone.
    """

    site: str
    identity: Identity
    roster: Roster
    policy: Policy
    entropy: Entropy
    noise: NoiseSource
    load: Callable[[Plan], SiteData]
    plan: Plan | None = None
    n_threads: int = 1
    load_held_out: Callable[[Plan], SiteData] = no_held_out_rows
    models: frozenset[bytes] = frozenset()
    sampling: SamplingSource | None = None
    arrivals: ArrivalFolder | None = None
    load_raw: Callable[[Asked], RawSite] = no_raw_rows
    tell: Callable[[str], object] = lambda text: None

    @property
    def max_rows(self) -> int:
        """The most rows that the roster says this site has; 0 where it does not say."""
        return self.roster.find_max_rows(self.site)


# Reading an invitation -----------------------------------------------------------------------------------------


def read_task(message: Invitation | EvaluationInvitation | SurveyInvitation) -> Task:
    """What an invitation is for; raises RemoteProtocolError for what is not a plan, PrivacyError for a bad cost."""
    if isinstance(message, SurveyInvitation):
        return survey_task(message.about, message.questions)
    plan = read_plan(message.plan)
    if isinstance(message, Invitation):
        return TrainingTask(plan)
    return EvaluationTask(plan, message.model, message.epsilon, message.delta, message.first_round, message.noise)


def read_plan(content: bytes) -> Plan:
    """The plan in an invitation; raises RemoteProtocolError."""
    try:
        return Plan.from_dict(read_json(content, MOST_VALUES))
    except (ValueError, AttributeError) as fault:
        why = f" {fault.what}" if isinstance(fault, PlanError) else ""
        raise RemoteProtocolError("task-unreadable", code="plan-unreadable", what="plan", why=why) from fault


def describe_invitation(message: Invitation | EvaluationInvitation | SurveyInvitation) -> tuple[str, str, str, float]:
    """What an invitation asks for, in the words of the list of invitations; see `BudgetBook.note_invitation`."""
    if isinstance(message, SurveyInvitation):
        try:
            task = survey_task(message.about, message.questions)
            return "survey", task.digest, task.plan.name, task.promise[0]
        except HedgerowError:
            return "survey", hashlib.sha256(message.questions).hexdigest(), "(cannot be read)", math.inf
    kind = "training" if isinstance(message, Invitation) else "evaluation"
    epsilon = message.epsilon if isinstance(message, EvaluationInvitation) else None
    try:
        plan = read_plan(message.plan)
    except HedgerowError:
        return kind, hashlib.sha256(message.plan).hexdigest(), "(cannot be read)", math.inf
    return kind, plan.digest, plan.name, TrainingTask(plan).promise[0] if epsilon is None else epsilon


# What the owner allows -----------------------------------------------------------------------------------------


def check_own_plan(setup: NodeSetup) -> None:
    """Refuse what the owner's own rules do not allow, before anyone is dialled: raises PolicyRefusal.

    What an evaluation of the plan's model may cost is in its invitation, and is checked then.
    """
    setup.policy.check_roster(setup.roster)
    if setup.plan is None:
        if setup.policy.surveys and not setup.policy.plans:
            return
        if not setup.policy.plans:
            raise PolicyRefusal("no-pinned-plan")
        if setup.policy.is_strict:
            raise PolicyRefusal("rows-without-plan", code="strict-without-plan", line='rows_that_do_not_fit = "refuse"')
        if setup.policy.limits_fit:
            raise PolicyRefusal(
                "rows-without-plan", code="limits-without-plan", line="max_unlisted, max_clamped or refuse_loss"
            )
        return
    if setup.policy.plans:
        _require_listed(setup.plan, setup.policy.plans)
    if setup.load_held_out is no_held_out_rows:
        task = TrainingTask(setup.plan)
        check_task(task, setup)
        setup.policy.check_kinds(task)
    else:
        # Where there are rows for evaluations only, it does not matter who added the noise to the training.
        is_for_both = setup.load is not no_training_rows
        setup.policy.check_plan(setup.plan, 0.0, None if is_for_both else setup.policy.noise_of_evaluations[0])


def check_task(task: Task, setup: NodeSetup) -> None:
    """Refuse what the owner forbids, whatever the rows: raises PolicyRefusal, RemoteProtocolError or UsageError."""
    require_pinned(task, setup)
    if isinstance(task, TrainingTask) and setup.arrivals is not None:
        setup.arrivals.check(task.plan)
    setup.policy.check_roster(setup.roster)
    evaluation_noise = task.noise if isinstance(task, EvaluationTask) else None
    setup.policy.check_plan(task.plan, task.promise[0], evaluation_noise)
    require_moderate(task, setup.policy.secure_sums.max_length)


def require_pinned(task: Task, setup: NodeSetup) -> None:
    """Raise PolicyRefusal unless the owner has named the task's plan: "no-pinned-plan" where none is named at all.

    A coordinator that could make plans up would choose bounds, classes and units by which a model, or no more than
    whether a node takes part, tells of single rows. A survey refuses nothing for what stands in a row: an owner agrees
    to surveys as such, with the policy's line ``surveys``, beside the plan that they have named. The ends and groups of
    curves are the coordinator's. With its own noise it would see the exact count of any of them, so `noise` of the
    policy, "distributed" by default, decides.
    """
    if isinstance(task, SurveyTask):
        if not setup.policy.surveys:
            raise PolicyRefusal("policy-survey")
        return
    if setup.plan is None and not setup.policy.plans:
        raise PolicyRefusal("no-pinned-plan")
    # A model's plan says which seed the sites had drawn, where the owner's leaves it to them.
    is_model = isinstance(task, EvaluationTask)
    if setup.plan is not None and not task.plan.is_run_of(setup.plan, is_model=is_model):
        require_same_plan(task.plan, setup.plan)
    if setup.policy.plans:
        _require_listed(task.plan, setup.policy.plans, is_model=is_model)


def _require_listed(plan: Plan, digests: Collection[str], *, is_model: bool = False) -> None:
    names = {plan.digest, plan.with_joint_structure().digest} if is_model else {plan.digest}
    if names.isdisjoint(digests):
        raise PolicyRefusal("policy-plan", name=plan.name, digest=plan.digest[:12])


def require_moderate(task: Task, max_length: int) -> None:
    """Raise PolicyRefusal (code "plan-too-large") when one round would ask for more entries than a node holds.

    Asked before the program begins: the trees of one batch alone could fill the machine's memory.
    """
    if task.schedule.longest > max_length:
        raise PolicyRefusal("plan-too-large", length=task.schedule.longest, max_length=max_length)


def require_same_plan(offered: Plan | Task, own: Plan | Task) -> None:
    """Raise PolicyRefusal (code "plan-changed") unless the two are one plan."""
    if offered.digest != own.digest:
        raise PolicyRefusal(
            "plan-changed",
            offered=format_spoken(bytes.fromhex(offered.digest)),
            own=format_spoken(bytes.fromhex(own.digest)),
        )


# The rows --------------------------------------------------------------------------------------------------------


_MORE_ROWS = "rows-beyond-declared"


def limit_rows(setup: NodeSetup, data: SiteData) -> SiteData:
    """The rows, no more than the roster says (`select_rows`); the owner, and no one else, is told of more."""
    if tell_about_more_rows(setup, data.n_records):
        places = data.all_places()
        columns = (*data.codes, data.labels, *(() if places is None else places))
        return data.only(select_rows(columns, data.n_records, setup.max_rows))
    return data


def tell_about_more_rows(setup: NodeSetup, n_rows: int) -> bool:
    """Whether there are more rows than the roster says, which the owner is told of then."""
    is_more = 0 < setup.max_rows < n_rows
    if is_more:
        setup.tell(
            f"This site has {n_rows:,} rows; the roster says that it has at most {setup.max_rows:,}. So many are used, "
            "chosen by a public rule. For their units the promise is that of replacing one by another: twice mu. Give "
            f"fewer rows, or agree on a roster with a larger number ({_MORE_ROWS}; private: for this site only)"
        )
    return is_more


def _limit_raw_rows(setup: NodeSetup, raw: RawSite) -> RawSite:
    """As `limit_rows`, of raw cells."""
    if not tell_about_more_rows(setup, raw.n_records):
        return raw
    rows = np.arange(raw.n_all) if raw.rows is None else raw.rows
    words = [word[rows] for column in raw.columns for word in _words(column)]
    return replace(raw, rows=rows[select_rows(words, len(rows), setup.max_rows)])


def _words(column: Column | NDArray[np.floating]) -> list[NDArray[Any]]:
    """What a column holds, as numbers, each [n_all]."""
    if isinstance(column, np.ndarray):
        return [column]
    texts, codes = column.texts
    # The last one is for cells without a text, whose code is -1.
    hashes = np.array([*(crc32(str(text).encode()) for text in texts), 0], dtype=np.uint64)
    return [column.kinds, hashes[codes]]


def answering_node(task: Task, setup: NodeSetup) -> tuple[Answers, bytes]:
    """What answers the task's queries over the rows for it, and the digest of these rows; raises DataError."""
    if isinstance(task, SurveyTask):
        raw = setup.load_raw(task.asked)
        cells = _limit_raw_rows(setup, raw)
        return SurveyNode(setup.site, cells, task.plan.privacy.rows_per_unit), digest_raw_rows(raw)
    if isinstance(task, EvaluationTask):
        held_out = setup.load_held_out(task.plan)
        used = limit_rows(setup, held_out)
        return EvaluationNode(setup.site, used, task.run_plan, setup.n_threads, setup.noise), digest_rows(held_out)
    data = setup.load(task.plan)
    used = limit_rows(setup, data)
    node = Node(setup.site, used, task.plan, task.settings, setup.n_threads, setup.sampling, setup.noise)
    return node, digest_rows(data)


def digest_rows(data: SiteData) -> bytes:
    """32 bytes that tell whether a site's rows are the same as before; they never leave the site."""
    hasher, places = hashlib.sha256(), data.all_places()
    own = [] if places is None else [places.tobytes()]
    for part in (str(data.codes.shape).encode(), data.codes.tobytes(), data.labels.tobytes(), *own):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def read_early(load: Callable[[Plan], SiteData], plan: Plan | None) -> Callable[[Plan], SiteData]:
    """`load`, with the rows of `plan` read already; raises DataError when they do not fit.

    A table that cannot be used is for the owner alone to hear of, and at once: the node does not dial then.
    """
    if plan is None:
        return load
    rows = load(plan)
    return lambda offered: rows if offered.is_run_of(plan) else load(offered)
