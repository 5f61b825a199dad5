# SPDX-License-Identifier: Apache-2.0
"""What a run promises, in numbers for machines and in plain words for people.

A report is its ledger and its context, and every number in it is computed from these, so that none can say less than
its ledger. A stored report is only compared with a new computation. Every line about a promise names the protected unit
and the conditions.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from hedgerow.errors import PrivacyError
from hedgerow.plan.plan import Plan, name_first
from hedgerow.plan.registry import list_foreign_parts
from hedgerow.privacy.accountants import Account, compute_account, epsilon_of_rows, get_accountant, least_epsilon_pld
from hedgerow.privacy.accounts import AccountState
from hedgerow.privacy.events import DiscreteGaussianSumEvent, SelectionEvent, UnnoisedEvent, scope_events
from hedgerow.privacy.ledger import EVALUATION_KINDS, Ledger, Release
from hedgerow.privacy.outlook import find_noise_factor, list_outlook
from hedgerow.privacy.public import PublicInputs
from hedgerow.privacy.rounding import format_up
from hedgerow.privacy.statement import AT_SITE, UNRECORDED, Statement, Topic, find_guess_bound, make_statement
from hedgerow.protocol.queries import NoiseCohort
from hedgerow.protocol.votes import Tally

ADJACENCY = "add or remove one"
LOCAL_ADJACENCY = "replace by zero the statistics of one"
"""Adjacency of the local model, in which each site's number of rows is public."""
NOISE_MODES = ("server", "distributed", "local")

# JSON has no infinity.
_INFINITE = "infinite"
_FLOATS = ("epsilon", "epsilon_requested", "epsilon_gdp", "epsilon_rdp", "epsilon_own", "delta")
_TOLERANCE = 1e-6
"""Relative, for what another machine's arithmetic computed; what is shown is always computed here."""
LARGE_EPSILON = 10.0
"""Beyond this a promise is next to none: odds may change by a factor of 22,000."""
_VOIDING = {
    "seeded": "the noise came from a seed and can be drawn again (experimental)",
    "approximate_noise": "the noise was an approximate floating-point Gaussian (experimental)",
    "bounds_from_data": "bounds or categories were read off the private data",
    "candidates_from_data": "split candidates are exact quantiles of the private data (for comparison)",
}
"""Facts of a context that void the guarantee, with the reason."""
ROWS_OF_ONE_PERSON = (1, 2, 3, 5)
"""Numbers of rows of one person for which a report states epsilon."""
_WHERE = ("made_in", "evaluated_in", "n_sites", "n_drawings", "tallies", "vote_power")
"""Facts unknown to plan and ledger; `PrivacyReport.made` notes them where the run happens."""
_SINCE_FIRST = (
    "candidates_from_data", "sites_per_unit", "n_prepared", "sums_in_clear", "n_groups", "authors", *_WHERE
)  # fmt: skip
"""Left out of a model's file where they say nothing: earlier versions did not have them."""
_COUNTED = ("epsilon_gdp", "epsilon_rdp", "_account", "guess_bound")
"""Numbers that a report computes once."""
_OWN_WORDS = {"pure": "pure differential privacy, no delta needed", "pld": "privacy loss distributions"}


@dataclass(frozen=True)
class PrivacyContext:
    """Facts about a run that its ledger does not hold.

    Attributes:
        delta: in (0, 1).
        epsilon_requested: what the plan asked for its training; None when it set the noise directly.
        accountant: the accountant whose epsilon was promised.
        unit: ``record``, or the column that names the person or thing that is protected.
        max_rows_per_unit: rows of one unit that were used at most at each site, >= 1.
        sites_per_unit: sites at which one unit has rows at most, as the plan declares, >= 1.
        noise_mode: ``server``, ``distributed`` or ``local``.
        seeded: whether the noise came from a seed.
        approximate_noise: whether the noise was a rounded floating-point Gaussian.
        bounds_from_data: whether bounds or categories were read off the data.
        candidates_from_data: whether split candidates were; the counts that they came from are in the ledger.
        n_records: the number of records that the plan declares; None when it is not known.
        n_prepared: releases that the plan says were made before the run; no one in the run has seen them.
        sums_in_clear: whether the plan has sums over sites added up without masks.
        authors: what the run asks for that is no part of Hedgerow, whose sensitivities are its author's word.
        n_groups: of sites, of whose sums the middle counted in a training; 0 for one sum over all.
        made_in: where the training was made, a name of `hedgerow.privacy.statement.PLACES`; "" if not recorded.
        evaluated_in: the same of evaluations by all sites together, each place once; empty where none is recorded.
        n_sites: sites of the roster, or tables of the process; 0 where it is not recorded.
        n_drawings: how often sites were dealt to groups; 0 where they were not, or it is not recorded.
        tallies: of each vote on the model so far: sites, those that voted, and objections. Empty without votes.
        vote_power: the chance that a vote shows a model that is turned round, by the rows that sites declare.
        public: what the run takes as public; None where no plan says it. It is no part of the account.
        outlook: how much signal the noise leaves a training, in lines; nor is this.
        account: the budget account of the rows when the report was made, with all runs in it; None where nobody read
            one. It is no part of this run's cost.
    """

    delta: float
    epsilon_requested: float | None = None
    accountant: str = "gdp"
    unit: str = "record"
    max_rows_per_unit: int = 1
    sites_per_unit: int = 1
    noise_mode: str = "server"
    seeded: bool = False
    approximate_noise: bool = False
    bounds_from_data: bool = False
    candidates_from_data: bool = False
    n_records: int | None = None
    n_prepared: int = 0
    sums_in_clear: bool = False
    n_groups: int = 0
    authors: tuple[str, ...] = ()
    made_in: str = ""
    evaluated_in: tuple[str, ...] = ()
    n_sites: int = 0
    n_drawings: int = 0
    tallies: tuple[tuple[int, int, int], ...] = ()
    vote_power: float = 0.0
    public: PublicInputs | None = field(default=None, repr=False, compare=False)
    outlook: tuple[str, ...] = field(default=(), repr=False, compare=False)
    account: AccountState | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        get_accountant(self.accountant)
        if self.noise_mode not in NOISE_MODES:
            raise PrivacyError("unknown-name", kind="mode of noise", name=self.noise_mode, known=", ".join(NOISE_MODES))

    @classmethod
    def from_plan(
        cls, plan: Plan, *, seeded: bool = False, approximate: bool = False, ledger: Ledger | None = None
    ) -> PrivacyContext:
        """Build the context of a plan's training; `seeded` and `approximate` as in `NoiseSource`.

        Args:
            ledger: of the run, once there is one, for how much noise its sites added.
        """
        privacy = plan.privacy
        return cls(
            delta=privacy.delta,
            epsilon_requested=privacy.epsilon,
            accountant=privacy.accountant,
            unit=privacy.unit,
            max_rows_per_unit=privacy.max_rows_per_unit,
            sites_per_unit=privacy.sites_per_unit,
            noise_mode=privacy.noise,
            seeded=seeded or any(release.seeded for release in plan.prepared),
            approximate_noise=approximate or any(release.approximate for release in plan.prepared),
            bounds_from_data=plan.reads_rows,
            candidates_from_data=plan.reads_quantiles,
            n_records=privacy.n_records,
            n_prepared=len(plan.prepared),
            sums_in_clear=not plan.federation.secure_aggregation,
            n_groups=plan.federation.groups,
            authors=tuple(
                f"the {part['what']} {' '.join(filter(None, (part['name'], part['version'])))} "
                f"({'module ' + part['module'] if part['module'] else 'which is not installed'})"
                for part in list_foreign_parts(plan)
            ),
            public=PublicInputs.from_plan(plan),
            outlook=list_outlook(plan, noise_factor=None if ledger is None else find_noise_factor(ledger)),
        )

    def with_evaluation(self, evaluation: PrivacyContext) -> PrivacyContext:
        """Return the context of model and evaluation together: at the model's delta, void if either is void.

        What was requested stays what the plan asked for: a file does not say what its evaluations were given.
        """
        either: dict[str, Any] = {name: getattr(self, name) or getattr(evaluation, name) for name in _VOIDING}
        places = self.evaluated_in
        if places and evaluation.made_in != AT_SITE:
            # The caller that knows the evaluation's place sets it afterwards with `PrivacyReport.evaluated`.
            places = tuple(sorted({*places, UNRECORDED}))
        return replace(self, evaluated_in=places, **either)


@dataclass(frozen=True)
class PrivacyReport(PrivacyContext):
    """Privacy of one run: its context, and the accountants' results. Made by `build_report`."""

    ledger: Ledger = field(kw_only=True, repr=False)

    def with_account(self, account: AccountState) -> PrivacyReport:
        """Return this report with the state of the rows' account at the time of the report."""
        is_chosen = account.is_chosen or (self.account is not None and self.account.is_chosen)
        found = replace(account.compare_with(self.ledger.events(), self.account), is_chosen=is_chosen)
        report = replace(self, account=found)
        # Copy cached results: some take seconds to compute.
        known = ("epsilon_gdp", "epsilon_rdp", "_account")
        vars(report).update({name: value for name, value in vars(self).items() if name in known})
        return report

    @cached_property
    def epsilon_gdp(self) -> float:
        """Epsilon spent at delta by exact accounting of Gaussian noise; infinity for a release without noise.

        If some releases were over samples, it is the Renyi bound of all releases.
        """
        return get_accountant("gdp").epsilon(self.ledger.events(), self.delta)

    @cached_property
    def epsilon_rdp(self) -> float:
        """Epsilon at `delta` by Renyi differential privacy."""
        return get_accountant("rdp").epsilon(self.ledger.events(), self.delta)

    @cached_property
    def _account(self) -> Account:
        if self.accountant in _OWN_WORDS:
            return compute_account(self.accountant, self.ledger.events(), self.delta)
        return Account(self.epsilon_gdp if self.accountant == "gdp" else self.epsilon_rdp, self.accountant)

    @property
    def epsilon(self) -> float:
        """Epsilon spent, by the plan's accountant, or by `gdp` if that one cannot account (`accounted_by`)."""
        return self._account.epsilon

    @property
    def accounted_by(self) -> str:
        """Name of the accountant behind `epsilon`."""
        return self._account.by

    @property
    def epsilon_own(self) -> float | None:
        """`epsilon` if its accountant is neither `gdp` nor `rdp`; else None."""
        return self.epsilon if self.accounted_by in _OWN_WORDS else None

    def epsilon_of_rows(self, n_rows: int) -> float:
        """Compute the epsilon for a person with `n_rows` rows if the unit is a record; rounded up.

        It is exact for Gaussian releases, else a bound: `hedgerow.privacy.accountants.epsilon_of_rows`.
        """
        if n_rows == 1:
            return self.epsilon
        return max(self.epsilon, epsilon_of_rows(self.accountant, self.ledger.events(), self.delta, n_rows))

    @property
    def epsilon_of_two_runs(self) -> float:
        """Epsilon of this run and another one like it together, rounded up; accounted as `epsilon_of_rows`."""
        events = [event for run in "12" for event in scope_events(self.ledger.events(), run)]
        # Never below the epsilon of this run: another accountant may find less.
        found = compute_account("gdp" if self.accountant == "pld" else self.accountant, events, self.delta).epsilon
        return max(self.epsilon, found)

    @property
    def n_releases(self) -> int:
        """Number of vectors that left the aggregation."""
        return len(self.ledger)

    @property
    def n_choices(self) -> int:
        """Number of releases that are choices by the coordinator from exact sums."""
        return sum(isinstance(event, SelectionEvent) for event in self.ledger.events())

    @property
    def adjacency(self) -> str:
        """Definition of neighbouring data sets."""
        return LOCAL_ADJACENCY if self.noise_mode == "local" else ADJACENCY

    @property
    def cohorts(self) -> dict[NoiseCohort, int]:
        """Number of releases by cohort of sites; empty unless the sites add the noise."""
        counts: dict[NoiseCohort, int] = {}
        for release in self.ledger:
            if release.cohort is not None:
                counts[release.cohort] = counts.get(release.cohort, 0) + 1
        return counts

    @property
    def voided_by(self) -> tuple[str, ...]:
        """Why the guarantee does not hold; empty when it does."""
        # Not `epsilon`: privacy loss distributions take seconds, and are infinite only where this one is.
        is_bare = (self.epsilon_rdp if self.accountant == "rdp" else self.epsilon_gdp) == math.inf
        bare = ("something left the aggregation without noise",) if is_bare else ()
        return bare + tuple(reason for name, reason in _VOIDING.items() if getattr(self, name))

    @property
    def guarantee(self) -> str:
        """``holds`` or ``void``."""
        return "void" if self.voided_by else "holds"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Weaknesses of a promise even where it is kept."""
        return list_warnings(self.epsilon, self.delta, self.n_records)

    @property
    def evaluation_modes(self) -> tuple[str, ...]:
        """Noise modes of evaluations other than the training's mode, as the ledger shows them."""
        own = {release.noise_mode for release in self.ledger if release.kind in EVALUATION_KINDS}
        return tuple(mode for mode in NOISE_MODES if mode in own - {self.noise_mode})

    @property
    def n_recalibrations(self) -> int:
        """Number of releases that gave the finished model another level and slope for one site's rows."""
        return sum(release.is_recalibration for release in self.ledger)

    @property
    def trust(self) -> str:
        """Sentences about the parties that the guarantee asks one to trust."""
        return " ".join(make_statement(self, Topic.TRUST).list_texts())

    @property
    def statement(self) -> Statement:
        """Every sentence about this run."""
        return make_statement(self)

    @cached_property
    def guess_bound(self) -> float:
        """Largest chance to guess rightly whether one unit was in the data, both as likely. Rounded up."""
        return find_guess_bound(self)

    def made(self, place: str, n_sites: int = 0, n_drawings: int = 0) -> PrivacyReport:
        """Return this report with the place of the training, as `PrivacyContext` defines it."""
        return self._place(made_in=place, n_sites=n_sites, n_drawings=n_drawings)

    def counted(self, plan: Plan, at_most: int | None) -> PrivacyReport:
        """Return this report with its outlook for at most this many records, as `count_at_most` bounds them."""
        if at_most is None or not self.outlook:
            return self
        return self._place(outlook=list_outlook(plan, noise_factor=find_noise_factor(self.ledger), at_most=at_most))

    def voted(self, tallies: Sequence[Tally], power: float) -> PrivacyReport:
        """Return this report with the votes of sites, as `PrivacyContext` defines them."""
        counts = tuple((each.n_sites, each.n_voted, each.n_objections) for each in tallies)
        return self._place(tallies=counts, vote_power=power if counts else 0.0)

    def evaluated(self, place: str, before: PrivacyReport) -> PrivacyReport:
        """Return this report, of a model that was just evaluated, with the place of that evaluation.

        Args:
            before: the model's report until then.
        """
        had = any(release.is_later and not release.is_at_one_site for release in before.ledger)
        places = before.evaluated_in or ((UNRECORDED,) if had else ())
        return self._place(evaluated_in=tuple(sorted({*places, place})))

    def _place(self, **where: Any) -> PrivacyReport:
        placed = replace(self, **where)
        # Keep the numbers that were computed: they do not depend on the place, and one of them takes seconds.
        vars(placed).update({name: vars(self)[name] for name in _COUNTED if name in vars(self)})
        return placed

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary of JSON values, spelling out what follows from plan and ledger."""
        content = self.claims() | {"epsilon_of_two_runs": _to_json(self.epsilon_of_two_runs)}
        content["guess_bound"] = self.guess_bound
        if self.unit == "record":
            found = {str(count): _to_json(self.epsilon_of_rows(count)) for count in ROWS_OF_ONE_PERSON}
            content["epsilon_by_rows_of_one_person"] = found
        if self.public is not None and self.public.line_breaks:
            content["epsilon_of_one_line"] = _to_json(self.epsilon_of_rows(self.public.records_of_a_line))
        return content | ({} if self.public is None else {"taken_as_public": self.public.to_dict()})

    def claims(self) -> dict[str, Any]:
        """Return the part of the report stored in a model's file beside its plan and ledger."""
        content: dict[str, Any] = {
            "epsilon": self.epsilon,
            "accounted_by": self.accounted_by,
            "epsilon_gdp": self.epsilon_gdp,
            "epsilon_rdp": self.epsilon_rdp,
            "n_releases": self.n_releases,
            "adjacency": self.adjacency,
            **{part.name: getattr(self, part.name) for part in fields(PrivacyContext) if part.compare},
        }
        optional = {
            "epsilon_own": self.epsilon_own,
            "n_choices": self.n_choices,
            "cohorts": self._write_cohorts(),
            "evaluation_modes": list(self.evaluation_modes),
        }
        content |= {name: value for name, value in optional.items() if value}
        for part in fields(PrivacyContext):
            if part.name in _SINCE_FIRST and getattr(self, part.name) == part.default:
                del content[part.name]
        content |= {"authors": list(self.authors)} if self.authors else {}
        content |= {} if self.account is None else {"account": self.account.to_dict()}
        content |= {name: _to_json(content[name]) for name in _FLOATS if name in content}
        judged = {"guarantee": self.guarantee, "voided_by": list(self.voided_by), "warnings": list(self.warnings)}
        return {**content, **judged, "trust": self.trust}

    def _write_cohorts(self) -> list[dict[str, int]]:
        return [{**cohort.to_dict(), "releases": count} for cohort, count in self.cohorts.items()]

    def text(self, sites: Sequence[str] = ()) -> str:
        """Return the report for a person: plain lines of text, without a newline at the end.

        Args:
            sites: the names of those who took part, where they are known.
        """
        lines = [self.headline]
        lines += [f"  ! {reason[0].upper()}{reason[1:]}." for reason in self.voided_by]
        lines += [f"  ! Warning: {warning}." for warning in self.warnings]
        facts = self.facts(sites)
        # On a line of its own a digest is not broken, and can be copied.
        digest = [f"    {self.public.digest}"] if self.public is not None and self.public.digest else []
        return "\n".join([*lines, *(f"  {name:<17} {text}" for name, text in facts), *digest])

    def _repr_html_(self) -> str:
        """Return the report as an HTML table for notebooks."""
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self.facts())
        return f"<table><caption>{html.escape(self.headline)}</caption>{rows}</table>"

    def facts(self, sites: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Return the lines of `text` as (name, text); arguments as for `text`.

        A line with an empty name continues the line above it.
        """
        protected = "each record; a person with several records is protected less (rows of a person)"
        if self.unit != "record":
            protected = (
                f"each {self.unit}: all rows with the same entry in that column. At most {self.max_rows_per_unit} "
                f"row(s) of each were used at each site. Whoever has rows at more than {self.sites_per_unit} site(s) "
                "is protected less"
            )
        request = ""
        if self.epsilon_requested is not None:
            of_training = " for the training" if any(release.is_later for release in self.ledger) else ""
            request = f" (requested{of_training}: {format_up(self.epsilon_requested)})"
        word = "no part of Hedgerow: what one record may add to its sums is its author's word (hedgerow check-method)"
        return [
            ("epsilon spent", f"{format_up(self.epsilon)} at delta {format_up(self.delta, 3)}{request}"),
            *(("", line) for line in self._describe_account()),
            *([("protects", protected)] if self.guarantee == "holds" else []),
            ("neighbouring data", f"{self.adjacency} {'record' if self.unit == 'record' else self.unit}"),
            *self._describe_releases(),
            *[("made by" if not at else "", f"{author}, {word}") for at, author in enumerate(self.authors)],
            *([("in words", "; ".join(words))] if (words := make_statement(self, Topic.PROMISE).list_texts()) else []),
            *self._list_sentences("guesses", Topic.GUESSES),
            *self._list_sentences("made in", Topic.MADE_IN),
            *(("" if at else "outlook", line) for at, line in enumerate(self.outlook)),
            *self._list_limits(sites),
        ]

    @property
    def headline(self) -> str:
        """A line that may stand alone: whether the guarantee holds, for whom, and given which assumptions."""
        if self.guarantee != "holds":
            return "Privacy guarantee: VOID"
        rows = f", with at most {self.max_rows_per_unit} row(s) at each site" if self.unit != "record" else ""
        stated = f" and {self.condition}" if self.authors else ""
        return (
            f"Privacy guarantee: HOLDS for one {self.unit}{rows}, given what is taken as public below{stated}: "
            f"epsilon {format_up(self.epsilon)} at delta {format_up(self.delta, 3)}"
        )

    @property
    def condition(self) -> str:
        """Assumption about foreign methods behind the guarantee; empty if everything is Hedgerow's own."""
        return f"if what {' and '.join(self.authors)} states of its sums is right" if self.authors else ""

    def _describe_account(self) -> list[str]:
        exact, renyi = format_up(self.epsilon_gdp), format_up(self.epsilon_rdp)
        if self.epsilon_own is not None:
            own = f"{format_up(self.epsilon_own)} by {_OWN_WORDS[self.accountant]} ({self.accountant})"
            return [own, f"{exact} by gdp and {renyi} by rdp, both bounds"]
        if self.accounted_by != self.accountant:
            return [f"a bound by {self.accounted_by}: {self._account.why}"]
        if self.epsilon_gdp == self.epsilon_rdp and 0 < self.epsilon_gdp < math.inf:
            # Only a ledger with sampled or pure releases gives both the same: one bound for all of it.
            return ["by Renyi accounting, which bounds releases of all kinds together"]
        return [f"{exact} by exact accounting (gdp); by a second, coarser method (rdp) {renyi}"]

    def _describe_releases(self) -> list[tuple[str, str]]:
        n_bare = sum(isinstance(event, UnnoisedEvent) for event in self.ledger.events())
        counts = {"noisy sum": self.n_releases - self.n_choices - n_bare, "sum": n_bare, "choice": self.n_choices}
        where = {"noisy sum": "", "sum": " without noise", "choice": " from exact sums"}
        kinds = [f"{n} {name}{'' if n == 1 else 's'}{where[name]}" for name, n in counts.items() if n]
        facts = [("releases", ", ".join(kinds) or "none")]
        if self.n_prepared:
            said = (
                "of them came before the training (such as to find bounds or classes): epsilon counts them as the plan"
            )
            facts.append(("", f"{self.n_prepared} {said} states them, and the training did not check them"))
        if self.n_recalibrations:
            said = "of them gave the finished model the level and slope of one site's rows, for rows like those"
            facts.append(("recalibrated", f"{self.n_recalibrations} {said}"))
        modes = "; ".join([self.noise_mode, *(f"{mode} in evaluations" for mode in self.evaluation_modes)])
        modes = "none" if n_bare and n_bare == self.n_releases else modes
        # A void promise asks for no trust, so only a promise that holds names the trusted parties.
        facts.append(("noise", f"{modes}: {self.trust}" if self.guarantee == "holds" else modes))
        facts += self._list_sentences("groups of sites", Topic.GROUPS)
        return facts + self._list_sentences("sums of sites", Topic.SUMS)

    def _list_sentences(self, name: str, topic: Topic) -> list[tuple[str, str]]:
        """Return the sentences of a topic as lines under one name."""
        texts = make_statement(self, topic).list_texts()
        return [("" if at else name, text) for at, text in enumerate(texts)]

    def _list_limits(self, sites: Sequence[str]) -> list[tuple[str, str]]:
        """Return the limits of the promise: persons with several rows, further runs, and public inputs."""
        facts = [] if self.account is None else self.account.facts(self.n_releases)
        if self.guarantee == "holds":
            facts.append(("rows of a person", self._describe_person_rows()))
            facts += self._list_lines()
            before = f" The {self.n_prepared} sums before it are counted." if self.n_prepared else ""
            facts.append(
                ("one run", "this is one run over these rows, and further runs over them add up: a second one like it "
                 f"would make epsilon {format_up(self.epsilon_of_two_runs, 3)} together.{before}")
            )  # fmt: skip
        if self.public is not None:
            public = [*self.public.facts(self.n_prepared), ("delta", f"{format_up(self.delta, 3)}, declared")]
            who = f": {name_first(sites)}" if sites else ""
            public.append(("sites", f"their names, and that they take part{who}"))
            facts += [("taken as public" if not at else "", f"{each[0]}: {each[1]}") for at, each in enumerate(public)]
        facts += self._list_sentences("not covered", Topic.GAPS)
        if self.public is not None and self.public.digest:
            facts.append(("plan", self.public.name))
        return facts

    def _describe_person_rows(self) -> str:
        if self.unit != "record":
            most = self.max_rows_per_unit
            return f"rows beyond {most} at a site are ignored, so whoever has more has the same protection"
        amounts = {count: self.epsilon_of_rows(count) for count in ROWS_OF_ONE_PERSON}
        said = "; ".join(
            f"{count} row{'' if count == 1 else 's'}: {format_up(epsilon, 3)} ({_format_factor(epsilon)})"
            for count, epsilon in amounts.items()
        )
        return f"epsilon, and the factor of the odds, for one person with {said}"

    def _list_lines(self) -> list[tuple[str, str]]:
        count = 1 if self.public is None else self.public.records_of_a_line
        amount = f"{count} of them, for which it is epsilon {format_up(self.epsilon_of_rows(count), 3)} together"
        said = f"by privacy.line_breaks one line of a file may have a say in more than one {self.unit}: in {amount}"
        return [("lines of a CSV", said)] if count > 1 else []


def build_report(ledger: Ledger, context: PrivacyContext) -> PrivacyReport:
    """Build the report of a run; the accountants read the whole ledger. Every report is made here.

    Raises:
        PrivacyError: code "noise-mode-unsupported": a release's event is not of the noise mode that is reported;
            code "unknown-event".
    """
    report = build_lazy_report(ledger, context)
    # Compute now, so that a ledger that cannot be accounted for is refused here and not at the first reading.
    _ = report.epsilon_gdp, report.epsilon_rdp, report.epsilon
    return report


def build_lazy_report(ledger: Ledger, context: PrivacyContext) -> PrivacyReport:
    """Build a report as `build_report`, computing each number at its first use: one takes seconds."""
    for release in ledger:
        if not _may_have_mode(release, context.noise_mode):
            subject, others = "A ledger with releases of another kind", "what its releases have"
            raise PrivacyError("noise-mode-unsupported", subject=subject, noise=context.noise_mode, others=others)
    values = {part.name: getattr(context, part.name) for part in fields(PrivacyContext)}
    # A resumed run may have had another source of noise before; the ledger records it.
    values["seeded"] |= any(release.seeded for release in ledger)
    values["approximate_noise"] |= any(release.approximate for release in ledger)
    return PrivacyReport(**values, ledger=ledger)


def check_claims(claims: Mapping[str, Any], report: PrivacyReport, *, exact: bool = True) -> None:
    """Refuse a stored report that claims less than is computed from the ledger beside it.

    Args:
        claims: as `PrivacyReport.to_dict` wrote it, in this version or one before.
        report: what is computed.
        exact: False leaves out what takes seconds: a figure by `pld` is then only compared with the least it can be.

    Raises:
        PrivacyError: code "report-untrue"; "malformed-report" for what is no report.
    """
    numbers = _read_numbers(claims)
    for name in ("delta", "accountant", "unit", "max_rows_per_unit", "noise_mode", "adjacency", "n_releases"):
        if claims[name] != getattr(report, name):
            raise _refuse_claim(f"{name} is {claims[name]!r}", f"{getattr(report, name)!r}")
    if claims.get("sites_per_unit", 1) != report.sites_per_unit:
        raise _refuse_claim("a unit has rows at fewer sites", f"at {report.sites_per_unit}, says the plan")
    if claims.get("n_choices", 0) != report.n_choices:
        raise _refuse_claim(f"{claims.get('n_choices', 0)} releases are choices", f"{report.n_choices} are")
    if claims.get("n_prepared", 0) != report.n_prepared:
        raise _refuse_claim(f"{claims.get('n_prepared', 0)} releases were before the run", f"{report.n_prepared} were")
    if report.cohorts and claims.get("cohorts") != report._write_cohorts():
        raise _refuse_claim("the sites that added noise are others", "every release names its own")
    for name in _VOIDING:
        if getattr(report, name) and not claims.get(name, False):
            raise _refuse_claim(f"{name} is false", "it is true")
    if report.guarantee == "void" and claims.get("guarantee", "void") != "void":
        raise _refuse_claim("the guarantee holds", f"it does not, for {report.voided_by[0]}")
    # Every accountant's epsilon is a bound, so the claimed total may equal any of them but not be smaller.
    whole = numbers.pop("epsilon", math.inf)
    if whole < min(numbers.values()) * (1 - _TOLERANCE):
        found = format_up(min(numbers.values()))
        raise _refuse_claim(f"epsilon is {format_up(whole)}", f"no accountant found less than {found}")
    for name, value in numbers.items():
        least = _find_least(name, report, exact=exact)
        if value < least * (1 - _TOLERANCE):
            raise _refuse_claim(f"{name} is {format_up(value)}", f"it is {format_up(least)}")
    # Older versions had neither. The sentences are not compared: another version may word them differently.
    for name in ("n_records", "accounted_by"):
        is_known = name in claims and (name == "n_records" or report.accountant != "pld")
        if is_known and claims[name] != getattr(report, name):
            raise _refuse_claim(f"{name} is {claims[name]!r}", f"it is {getattr(report, name)!r}")


def _find_least(name: str, report: PrivacyReport, *, exact: bool) -> float:
    if name != "epsilon_own":
        return float(getattr(report, name))
    if report.accountant == "pld" and (not exact or report.epsilon_own is None):
        return least_epsilon_pld(report.ledger.events(), report.delta)
    return report.epsilon


def _read_numbers(claims: Mapping[str, Any]) -> dict[str, float]:
    """Return the epsilons of a stored report.

    Raises:
        PrivacyError: code "malformed-report".
    """
    needed = {"epsilon_gdp", "epsilon_rdp", "delta", "accountant", "unit", "max_rows_per_unit", "noise_mode"}
    needed |= {"adjacency", "n_releases", "epsilon_requested", "seeded", "approximate_noise", "bounds_from_data"}
    if missing := sorted(needed - set(claims)):
        raise _report_error(f"The privacy report lacks {', '.join(missing)}.")
    if not all(isinstance(claims.get(name, False), bool) for name in _VOIDING):
        raise _report_error("The privacy report has a flag that is neither true nor false.")
    numbers = {}
    for name in ("epsilon", "epsilon_gdp", "epsilon_rdp", "epsilon_own"):
        value = math.inf if claims.get(name) == _INFINITE else claims.get(name, 0.0)
        if type(value) not in (int, float) or not value >= 0:
            raise _report_error(f"The privacy report's {name} is {value!r}, which is no epsilon.")
        if name in claims:
            numbers[name] = float(value)
    return numbers


def list_warnings(epsilon: float, delta: float, n_records: int | None) -> tuple[str, ...]:
    """List the weaknesses of an (epsilon, delta) promise even where it is kept, without full stops.

    Args:
        n_records: records that the plan declares; None if that is not known.
    """
    found = []
    if n_records is not None and delta * n_records >= 1:
        found.append(
            f"delta is not below 1 / n_records ({format_up(delta, 3)}, 1 / {n_records}): the promise may fail for "
            "somebody"
        )
    if LARGE_EPSILON < epsilon < math.inf:
        found.append(f"epsilon is above {LARGE_EPSILON:g}: so weak a promise hides next to nothing about anybody")
    return tuple(found)


def _may_have_mode(release: Release, mode: str) -> bool:
    """Return whether a release fits a run of noise mode `mode`, or an evaluation of its model.

    Evaluations choose by themselves between noise of the coordinator and of the sites. A release without noise fits any
    run.
    """
    own = release.noise_mode
    if own in ("site", "alone"):
        return True
    if release.kind in EVALUATION_KINDS and mode != "local" and own in ("server", "distributed"):
        mode = own
    if release.is_recalibration:
        mode = "server"
    if own in ("", "local") or mode in ("local", "distributed"):
        return own in ("", mode)
    # A sample's noise of the coordinator counts as one share.
    return release.cohort is None and not isinstance(release.event, DiscreteGaussianSumEvent)


def _refuse_claim(said: str, found: str) -> PrivacyError:
    return PrivacyError("report-untrue", said=said, found=found)


def _report_error(what: str) -> PrivacyError:
    return PrivacyError("malformed", code="malformed-report", what=what)


def _compute_factor(epsilon: float) -> float:
    # The factor by which odds may change.
    return math.exp(epsilon) if epsilon < 700 else math.inf


def _format_factor(epsilon: float) -> str:
    # Rounded up, for a person to read.
    factor = _compute_factor(epsilon)
    if factor >= 1e6:
        return "over 1,000,000"
    return f"{math.ceil(factor):,}" if factor >= 1000 else format_up(factor, 3)


def _to_json(epsilon: float) -> float | str:
    return _INFINITE if epsilon == math.inf else epsilon
