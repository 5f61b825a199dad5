# SPDX-License-Identifier: Apache-2.0
"""The rules of a site's owner for any coordinator's proposal: a TOML file that never leaves the site."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.data.adapters import PLAIN, Adapter, adapter
from hedgerow.errors import PlanError, PolicyRefusal, UsageError
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task
from hedgerow.plan.fields import (
    allows,
    boolean,
    define_field,
    distinct_texts,
    integer,
    number,
    one_of,
    read_section,
    read_toml,
    refuse,
    some_of,
    text,
)
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import Query, SiteQuery
from hedgerow.secagg.messages import NodePolicy, Roster

POLICY_VERSION = 1
NOISE = ("server", "distributed", "local")
DEFAULT_NOISE = ("distributed",)
"""The default excludes "server", which trusts the coordinator with exact sums, and "local", which treats the number of
a site's rows as known: an owner who agrees to either names it.
"""


@allows({"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}, "uniqueItems": True})
def _read_plan_digests(value: object, path: str) -> tuple[str, ...]:
    """Read a list of distinct digests of plans, 64 hexadecimal digits each."""
    digests = tuple(digest.lower() for digest in distinct_texts(value, path))
    for digest in digests:
        if re.fullmatch("[0-9a-f]{64}", digest) is None:
            raise refuse(
                path, digest, "digests of plans, 64 hexadecimal digits each, as `hedgerow privacy PLAN` prints"
            )
    return digests


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The owner's rules: the fields of the policy file.

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
        evaluation_noise: the same for evaluations of models; without it the sites only. "local" is allowed wherever
            `noise` has it.
        site_figures: whether evaluations may show how well a model predicts at this site by itself, with noise of this
            site alone.
        surveys: whether coordinators may ask for bounds, classes and statistics of the columns above, with the noise
            above, before there is a plan.
        min_colluders: sites, besides the coordinator, that may collude.
        requires_echo: whether nodes must compare what the coordinator told each of them.
        ask: "always": no answer to a run before the owner has approved it.
        monitors: "any": the coordinator may add parties that watch, and nothing else.
        coordinators: Ed25519 keys of coordinators, in hexadecimal; without it the roster's.
        plugins: modules of other packages to load, each as `hedgerow check-method --plugin MODULE` names it: module,
            version and digest; without it none. Packages that they import are in no digest.
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
    plans: tuple[str, ...] = define_field(_read_plan_digests, ())
    noise: tuple[str, ...] = define_field(some_of(*NOISE), ())
    evaluation_noise: tuple[str, ...] = define_field(some_of(*NOISE), ())
    site_figures: bool = define_field(boolean, False)
    surveys: bool = define_field(boolean, False)
    min_colluders: int = define_field(integer(0, 4096), 1)
    requires_echo: bool = define_field(boolean, False)
    ask: str = define_field(one_of("never", "always"), "never")
    monitors: str = define_field(one_of("pinned", "any"), "pinned")
    coordinators: tuple[str, ...] = define_field(distinct_texts, ())
    plugins: tuple[str, ...] = define_field(distinct_texts, ())
    data: Adapter = define_field(adapter, PLAIN)  # noqa: RUF009 (frozen, like the others' defaults)

    @property
    def asks(self) -> bool:
        """Whether the owner is asked before the node answers an invitation; see `hedgerow.app.owner`."""
        return self.ask == "always"

    @property
    def noise_of_evaluations(self) -> tuple[str, ...]:
        """Parties that may add the noise to evaluations.

        "local" is included if training may have it, because it asks for less trust.
        """
        also = ("local",) if "local" in self.noise and "local" not in self.evaluation_noise else ()
        return (*(self.evaluation_noise or DEFAULT_NOISE), *also)

    def shows_figures(self, query: SiteQuery) -> bool:
        """Return whether this site's own figures may be told, with its noise.

        Otherwise its part of such sums is empty.
        """
        return self.site_figures and not _list_beyond([query.purpose.kind], self.query_kinds)

    @property
    def secure_sums(self) -> NodePolicy:
        """The rules that secure aggregation checks."""
        return NodePolicy(
            min_cohort=self.min_sites,
            min_colluders=self.min_colluders,
            # At least two vectors in a sum are honest, this site's and another one, and with the colluders' there are
            # at least three. An owner who allows runs of fewer sites needs less.
            min_honest_survivors=min(self.min_sites, max(2, 3 - self.min_colluders)),
            min_honest_group=min(2, self.min_sites),
            requires_echo=self.requires_echo,
            # The noise of a run's task is checked separately.
            refuses_server_noise="server" not in (*(self.noise or DEFAULT_NOISE), *self.noise_of_evaluations),
        )

    def beyond_defaults(self, plan: Plan) -> list[str]:
        """List this policy's lines that allow or reveal more than the policy's defaults do.

        Each line has the form "name = value". `noise` is not listed: the owner is asked for it in words.
        """
        usual = Policy(version=self.version, data_set=self.data_set, max_epsilon=self.max_epsilon, delta=self.delta)
        wider = {
            "min_sites": self.min_sites < usual.min_sites,
            "min_colluders": self.min_colluders < usual.min_colluders,
            "site_figures": self.site_figures,
            "surveys": self.surveys,
            "monitors": self.monitors != usual.monitors,
            # The same cost is a smaller epsilon at a larger delta.
            "delta": self.delta > plan.privacy.delta,
            "max_epsilon": math.isinf(self.max_epsilon),
        }
        return [f"{name} = {getattr(self, name)}" for name, is_wider in wider.items() if is_wider]

    def check_task(self, task: Task, roster: Roster) -> None:
        """Check a task against these rules, whatever the rows, before anything is reserved.

        Raises PolicyRefusal. Only `check_query` can refuse a survey's further queries, which depend on its findings.
        """
        self.check_roster(roster)
        evaluation_noise = task.noise if isinstance(task, EvaluationTask) else None
        # Do not test the label's name: the survey's plan has a placeholder for none, and any column may have that name.
        has_label = not isinstance(task, SurveyTask) or bool(task.asked.label)
        self.check_plan(task.plan, task.promise[0], evaluation_noise, has_label=has_label)
        # Check before the program begins: the trees of one batch alone could fill the machine's memory.
        longest, max_length = task.schedule.longest, self.secure_sums.max_length
        if longest > max_length:
            raise PolicyRefusal("plan-too-large", length=longest, max_length=max_length)
        votes = task.schedule.votes
        for alike in (*task.schedule.rounds, *([] if votes is None else [votes])):
            if alike.query.length:
                self._require_kind(alike.query)

    def check_roster(self, roster: Roster) -> None:
        """Raise PolicyRefusal: policy-coordinator, policy-small-cohort."""
        if self.coordinators and roster.coordinator.hex() not in self.coordinators:
            raise PolicyRefusal("policy", code="policy-coordinator", asked="the coordinator of this roster")
        if len(roster.sites) < self.min_sites:
            raise PolicyRefusal("policy-small-cohort", n_roster=len(roster.sites), least=self.min_sites)

    def check_plan(
        self, plan: Plan, epsilon: float | None = None, evaluation_noise: str | None = None, *, has_label: bool = True
    ) -> None:
        """Raise PolicyRefusal if a plan breaks a rule; the code names the rule.

        Args:
            epsilon: the most that the run may cost; None for the plan's; another number for an evaluation of the plan's
                model.
            evaluation_noise: the party that adds the noise to such an evaluation; None for training.
            has_label: False for a survey that asks about no label.
        """
        beyond = _list_beyond(plan.feature_names, self.features)
        if beyond:
            raise PolicyRefusal("policy", code="policy-feature", asked=f"the column {beyond[0]!r}, which the plan uses")
        beyond = _list_beyond(plan.label.columns if has_label else (), self.labels)
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

    def check_query(self, query: Query) -> None:
        """Raise PolicyRefusal: policy-query-kind or policy-unnoised."""
        self._require_kind(query)
        if query.noise_multiplier == 0 and not math.isinf(self.max_epsilon):
            raise PolicyRefusal("policy", code="policy-unnoised", asked="a sum without noise")

    def _require_kind(self, query: Query) -> None:
        kind = query.purpose.kind
        # The node answers nothing to a forbidden query by site, so it need not refuse the run.
        if not isinstance(query, SiteQuery) and _list_beyond([kind], self.query_kinds):
            raise PolicyRefusal("policy", code="policy-query-kind", asked=f"queries of the kind {kind}")


def parse_policy(toml_text: str) -> Policy:
    """Read a policy from the text of its file.

    Raises:
        UsageError: code "policy-file": it is not TOML, or a field is missing, unknown or wrong.
    """
    try:
        table = read_toml(toml_text)
        if "version" not in table:
            raise PlanError("plan-missing-field", path="policy", name="version", value=f" = {POLICY_VERSION}", also="")
        return read_section(Policy, table, "policy")
    except PlanError as error:
        what, cause, remedy = error.what, error.cause, error.remedy
        raise UsageError("policy-file", code="policy-file", what=what, cause=cause, remedy=remedy) from None
    except ValueError as error:
        raise UsageError("not-toml", code="policy-file", name="The policy", fault=error) from None


def noise_refusal(what: str, noise: str, line: str) -> PolicyRefusal:
    """Return the refusal of a noise that a policy does not name.

    `line` is the policy's line that would allow it.
    """
    causes = {
        "server": "The coordinator would see exact sums over all sites, which can be one patient's values, and is "
        "trusted to add the noise.",
        "local": "How many rows this site has is taken to be known.",
    }
    if noise in causes:
        return PolicyRefusal("policy-noise-weaker", what=what, noise=noise, line=line, cause=causes[noise])
    return PolicyRefusal("policy-noise", what=what, noise=noise, line=line)


def _list_beyond(wanted: Iterable[str], allowed: tuple[str, ...]) -> list[str]:
    """Return the wanted names that are not allowed; an empty list allows everything."""
    return [name for name in wanted if allowed and name not in allowed]
