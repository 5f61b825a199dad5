"""What a site's owner allows, whatever a coordinator proposes: a TOML file that never leaves the site.

    version = 1
    data_set = "admissions 2019-2024"   # what the budget is counted for
    max_epsilon = 3.0                   # over the data set's whole life, all runs together
    delta = 1e-6                        # the delta at which that epsilon is counted
    min_sites = 5                       # least sites in a run's roster and in an epoch
    unit = "patient_id"                 # whom runs must protect: this column's units, or "record"; without it: either
    features = ["age", "ward"]          # columns that runs may use; without it: all
    labels = ["readmitted"]             # columns that runs may predict; without it: all
    query_kinds = ["LeafSums"]          # without it: all
    plans = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]   # digests of plans to take part in
    noise = ["distributed"]             # who may add the noise: "server", "distributed", "local"; without it:
                                        # the sites only. "server" trusts the coordinator with exact sums
    evaluation_noise = ["distributed"]  # the same for evaluations of models; without it: the sites only
    min_colluders = 1                   # sites, besides the coordinator, that may collude; 1 without it
    requires_echo = false
    coordinators = ["3f0c..."]          # Ed25519 keys, in hexadecimal; without it: the roster's
    rows_that_do_not_fit = "leave-out"  # or "refuse", which tells the others that there is such a row
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.errors import PlanError, PolicyRefusal, UsageError
from hedgerow.plan.fields import (
    boolean,
    checked,
    distinct_texts,
    integer,
    number,
    one_of,
    quoted,
    read_section,
    read_toml,
    text,
)
from hedgerow.plan.plan import Plan
from hedgerow.protocol.queries import Query
from hedgerow.secagg.roster import NodePolicy, Roster

POLICY_VERSION = 1
DEFAULT_NOISE = ("distributed",)
"""Not "server", which trusts the coordinator with exact sums, nor "local", which takes the number of a site's rows to
be known: an owner who agrees to either says so.
"""


def _plan_digests(value: object, path: str) -> tuple[str, ...]:
    """A list of distinct digests of plans, 64 hexadecimal digits each."""
    digests = tuple(digest.lower() for digest in distinct_texts(value, path))
    for digest in digests:
        if re.fullmatch("[0-9a-f]{64}", digest) is None:
            raise PlanError("policy-digests", path=path, found=quoted(digest))
    return digests


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The owner's rules; the fields are those of the file above."""

    version: int = checked(integer(1, POLICY_VERSION))
    data_set: str = checked(text)
    max_epsilon: float = checked(number(0, math.inf))
    delta: float = checked(number(0, 1, exclusive=True))
    min_sites: int = checked(integer(1, 4096), 3)
    unit: str = checked(text, "")
    features: tuple[str, ...] = checked(distinct_texts, ())
    labels: tuple[str, ...] = checked(distinct_texts, ())
    query_kinds: tuple[str, ...] = checked(distinct_texts, ())
    plans: tuple[str, ...] = checked(_plan_digests, ())
    noise: tuple[str, ...] = checked(distinct_texts, ())
    evaluation_noise: tuple[str, ...] = checked(distinct_texts, ())
    min_colluders: int = checked(integer(0, 4096), 1)
    requires_echo: bool = checked(boolean, False)
    coordinators: tuple[str, ...] = checked(distinct_texts, ())
    rows_that_do_not_fit: str = checked(one_of("leave-out", "refuse"), "leave-out")

    @property
    def is_strict(self) -> bool:
        """Whether one row that does not fit, or a table without rows, keeps the site out of a run."""
        return self.rows_that_do_not_fit == "refuse"

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

    def check_roster(self, roster: Roster) -> None:
        """Raises PolicyRefusal: policy-coordinator, policy-small-cohort."""
        if self.coordinators and roster.coordinator.hex() not in self.coordinators:
            raise PolicyRefusal("policy-coordinator")
        if len(roster.sites) < self.min_sites:
            raise PolicyRefusal("policy-small-cohort", n_roster=len(roster.sites), least=self.min_sites)

    def check_plan(self, plan: Plan, epsilon: float | None = None, evaluation_noise: str | None = None) -> None:
        """Raises PolicyRefusal; its code says which rule the plan breaks.

        Args:
            epsilon: what the run may cost; None for the plan's, other for the evaluation of the plan's model.
            evaluation_noise: who adds the noise to such an evaluation; None for training.
        """
        beyond = _beyond(plan.feature_names, self.features)
        if beyond:
            raise PolicyRefusal("policy-feature", column=beyond[0])
        if _beyond([plan.label.name], self.labels):
            raise PolicyRefusal("policy-label", label=plan.label.name)
        if evaluation_noise is not None and evaluation_noise not in self.noise_of_evaluations:
            said = f"The coordinator asks for an evaluation with {evaluation_noise} noise"
            raise noise_refusal(said, evaluation_noise, "evaluation_noise")
        if evaluation_noise is None and plan.privacy.noise not in (self.noise or DEFAULT_NOISE):
            raise noise_refusal(f"The plan wants {plan.privacy.noise} noise", plan.privacy.noise, "noise")
        if self.unit and plan.privacy.unit != self.unit:
            # An epsilon for each record is a weaker promise to somebody with many records.
            raise PolicyRefusal("policy-unit", unit=plan.privacy.unit, wanted=self.unit)
        own = math.inf if plan.reads_quantiles else plan.privacy.epsilon
        wanted = own if epsilon is None else epsilon
        if math.isinf(wanted) and not math.isinf(self.max_epsilon):
            raise PolicyRefusal("policy-unnoised")
        if not plan.federation.secure_aggregation:
            raise PolicyRefusal("policy-clear-sums")

    def check_query(self, query: Query) -> None:
        """Raises PolicyRefusal: policy-query-kind or policy-unnoised."""
        if _beyond([query.purpose.kind], self.query_kinds):
            raise PolicyRefusal("policy-query-kind", kind=query.purpose.kind)
        if query.noise_multiplier == 0 and not math.isinf(self.max_epsilon):
            raise PolicyRefusal("policy-unnoised-query")


def parse_policy(toml_text: str) -> Policy:
    """Read a policy from the text of its file.

    Raises:
        UsageError: code "policy-file": it is not TOML, or a field is missing, unknown or wrong.
    """
    try:
        return read_section(Policy, read_toml(toml_text), "policy")
    except PlanError as error:
        raise UsageError("policy-file", what=error.what, cause=error.cause, remedy=error.remedy) from None
    except ValueError as error:
        raise UsageError("policy-syntax", error=error) from None


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
