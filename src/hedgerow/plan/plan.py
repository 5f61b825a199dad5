# SPDX-License-Identifier: Apache-2.0
"""The plan: the one public file that all parties agree on.

Everything a run does follows from its plan: the schema, the trees, the noise, the queries. It is public, so
nothing in it may be read off private data; what is (for comparisons) is marked, and the report then says so.

Methods other than boosted trees have a section of their own, read only where `model.algorithm` says so, and read some
fields of [model] as well. The others would be ignored, so they are refused. All this stands with the methods: see
`hedgerow.plan.registry`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hedgerow.errors import PlanError
from hedgerow.plan.fields import (
    MAX_VALUES,
    allows,
    ascending_numbers,
    boolean,
    date_format,
    define_field,
    distinct_texts,
    format_day,
    groups,
    integer,
    list_of,
    number,
    one_of,
    parse_day,
    parse_toml,
    read_section,
    refuse,
    require_plain,
    text,
)
from hedgerow.plan.omop import Omop, check_omop, read_omop, write_omop
from hedgerow.plan.registry import (
    AbsentLoss,
    AbsentMethod,
    LabelKind,
    NamedLoss,
    PlanRules,
    label_kinds,
    named_losses,
    rules_by_method,
    section_name,
    sections,
)

PLAN_VERSION = 1
DEFAULT_ALGORITHM = "boosting"
PRINTED = "iterative_hessian_printed"
BY_HISTOGRAMS = ("iterative_hessian", PRINTED)
"""Kinds of split candidates that a run pays histograms of Hessians for."""
MAX_CATEGORIES, MANY_CATEGORIES = 65_000, 250
"""A category is one code of two bytes, and of one byte up to the second; a few are kept for unknown and missing
values. A list beyond the second is one of codes: neighbours in it may share a leaf, and no draft makes one of texts."""
MAX_STRUCTURE_SEED = 2**63 - 1
MAX_NAMED = 12
"""Features that a line for a person names."""
MIN_SECONDS = 1.0
"""Shortest timeout in seconds; with less, a waiting party gives up before anyone can answer."""
DECLARED, FOUND, TYPED, READ_OFF = "declared", "found", "type", "data"
"""Where a column's type, bounds, categories or classes are from: its author; noisy sums in [[prepared]]; the type that
a library gives the column, because the caller said so; the private rows, which voids the guarantee."""
_ORIGINS = one_of(DECLARED, FOUND, TYPED, READ_OFF)


def _require_known(value: Any, path: str, known: Iterable[str]) -> Any:
    """Return the value if it names something known to this process; plug-ins add names."""
    if value not in (names := list(known)):
        words = ", ".join(f'"{name}"' for name in names)
        raise refuse(path, value, f"one of {words}, or what a plug-in adds (--plugin, or `plugins` in a file)")
    return value


@allows(lambda: {"enum": list(label_kinds())})
def _label_type(value: Any, path: str) -> Any:
    """Check for the name of a type of label."""
    return _require_known(value, path, label_kinds())


@allows(lambda: {"enum": list(rules_by_method())})
def _algorithm(value: Any, path: str) -> Any:
    """Check for the name of a method."""
    return _require_known(value, path, rules_by_method())


def bucket_names(n_buckets: int) -> tuple[str, ...]:
    """Return the names of a hashed feature's categories."""
    return tuple(f"bucket {number}" for number in range(n_buckets))


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column: numeric or a date with public bounds, categorical with public categories, or hashed text.

    Attributes:
        name: the column's name in the tables.
        type: numbers, dates, one of a list of texts, or text without a list.
        buckets: for hashed text, the number of buckets into which a public hash of the text puts it.
        min, max: the public bounds; values beyond them count as the bound. Wide ones cost little from about 10,000
            records at epsilon 1 on. Of a date ISO 8601 in the file, and here days since 1970-01-01, UTC.
        integer: whether all values are whole numbers.
        spacing: how the cells that values are cut into are spaced; "auto" is half even and half logarithmic.
        categories: the public list; texts that are not listed share one code, and missing values another.
        format: how texts write a date, where it is not ISO 8601.
        monotone: whether predictions (with two classes, the chance of the last one) never fall, or never rise, with
            this feature alone.
        origin: where type, bounds and categories come from. "declared": the plan's author; "found": noisy sums of
            `[[prepared]]`; "type": the type that a library gives the column, if the caller asks for that; "data": the
            private rows, which voids the guarantee.
    """

    name: str = define_field(text)
    type: str = define_field(one_of("numeric", "date", "categorical", "hashed"))
    buckets: int | None = define_field(integer(2, MAX_CATEGORIES), None)
    min: float | None = define_field(number(-3e38, 3e38), None)
    max: float | None = define_field(number(-3e38, 3e38), None)
    integer: bool = define_field(boolean, False)
    spacing: str = define_field(one_of("auto", "uniform", "log"), "auto")
    categories: tuple[str, ...] = define_field(distinct_texts, ())
    format: str | None = define_field(date_format, None)
    monotone: str | None = define_field(one_of("increasing", "decreasing"), None)
    origin: str = define_field(_ORIGINS, DECLARED)

    def __post_init__(self) -> None:
        if self.is_hashed and self.buckets is not None and not self.categories:
            object.__setattr__(self, "categories", bucket_names(self.buckets))

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The bounds of a number or a date; None without both, the lower one first."""
        if self.is_categorical or self.min is None or self.max is None or self.min >= self.max:
            return None
        return self.min, self.max

    @property
    def listed(self) -> tuple[str, ...]:
        """The listed texts; none of hashed text, whose categories are buckets."""
        return self.categories if self.type == "categorical" else ()

    @property
    def is_categorical(self) -> bool:
        return self.type in ("categorical", "hashed")

    @property
    def is_date(self) -> bool:
        return self.type == "date"

    @property
    def is_hashed(self) -> bool:
        return self.type == "hashed"


@dataclass(frozen=True, kw_only=True)
class Label:
    """The label: its column, its type, and its public classes or bounds, or of a time to an event its intervals.

    Attributes:
        name: its column; of a time to an event the column of times, from 0 on.
        type: two classes, several, a bounded number, a count, or a time to an event.
        classes: the public list of classes.
        min, max: the public bounds of a number; a count's are 0 and `max`.
        event: the column that says whether the event was seen then or the record was censored.
        event_codes: what that column says of a censored record, and then of one whose event was seen; without them the
            usual words: false, 0, no or No, and true, 1, yes or Yes.
        intervals: the public ends of the intervals that time is cut into; the first begins at 0.
        origin: where these are from, as of a feature.
    """

    name: str = define_field(text)
    type: str = define_field(_label_type)
    classes: tuple[str, ...] = define_field(distinct_texts, ())
    min: float | None = define_field(number(-3e38, 3e38), None)
    max: float | None = define_field(number(-3e38, 3e38), None)
    event: str | None = define_field(text, None)
    event_codes: tuple[str, ...] = define_field(distinct_texts, ())
    intervals: tuple[float, ...] = define_field(ascending_numbers, ())
    origin: str = define_field(_ORIGINS, DECLARED)

    @property
    def kind(self) -> LabelKind:
        """Rules of the label's type."""
        return label_kinds()[self.type]

    @property
    def n_outputs(self) -> int:
        """Scores per record: one, or one per class when there are three classes or more."""
        return self.kind.n_outputs(self)

    @property
    def n_codes(self) -> int:
        """Number of codes of the label, from `LabelKind.n_codes`."""
        return self.kind.n_codes(self)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns from which the label is read."""
        return (self.name,) if self.event is None else (self.name, self.event)

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds of a number, with 0 for a minimum that is not given. ValueError for classes."""
        if self.max is None:
            raise ValueError(f"the label {self.name} has no bounds")
        return self.min or 0.0, self.max


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Settings of the trees. "auto" means: by the rule of docs/defaults.md, from public quantities only.

    Attributes:
        algorithm: the method; those other than "boosting" have a section of their own.
        n_trees: trees, or a method's rounds.
        max_depth: questions on one path of a tree.
        n_candidates: split candidates of a feature.
        split_method: how splits are found. "totally_random": drawn, which costs nothing; "hist": the best of noisy
            histograms of all candidates; "partially_random": one drawn split of each feature, and the best by noisy
            sums of its sides.
        weight_update: source of a leaf's value. "newton": gradients over Hessians; "gradient": the mean gradient;
            "averaging": the mean label, without boosting.
        split_candidates: where candidates lie. "uniform" and "log": evenly in the bounds, or in their logarithms;
            "iterative_hessian": where noisy histograms, which are paid for, say that Hessians are;
            "iterative_hessian_printed": the same by the rule as CCS'22 prints it, not as its authors run it;
            "adaptive": where the leaves that are released anyway say so; "quantile": by exact counts, for comparisons:
            such a run has no guarantee, whatever its epsilon.
        candidate_rounds: number of noisy histograms for "iterative_hessian".
        interaction: which features a tree may use. "cyclical": the next ones of a public random order; "random": some
            at random; "adaptive": those that have gained most by the releases so far.
        interaction_size: number of features that one tree may use.
        batch_size: trees requested in one round.
        learning_rate: factor of each leaf's value.
        leaf_ridge: the ridge of a leaf, in Hessians.
        noise_ridge: addition to the ridge, in standard deviations of the noise.
        leaf_clip: largest value of a leaf, before the learning rate.
        joint_clip: largest norm of what one record adds, gradient and Hessian together.
        hessian_scale: weight of the Hessian beside the gradient.
        class_weights: weight of a record of each class, in the order of the classes; only their ratios matter. The
            noise fits the largest weight, so the other classes are learned with less signal. Predicted chances are
            those of the weighted classes.
        start: what the model starts with before its trees.
        shrinkage: share of the James-Stein correction for trees with little signal above the noise.
        calibration: whether a last release corrects the predictions.
        structure_seed: seeds what is random and public about the trees: a number that all agree on, or "joint": drawn
            for each run from a nonce of every site, committed to before any is shown, so that no one picks it; that
            needs floor(2n/3) + 1 of a roster's n sites, also where `federation.min_sites` is less.
        interaction_constraints: groups of features: all features on one path of a tree are in one group. Features in no
            group form a further group.
    """

    algorithm: str = define_field(_algorithm, DEFAULT_ALGORITHM)
    n_trees: int | str = define_field(integer(1, 100_000, "auto"), "auto")
    max_depth: int | str = define_field(integer(1, 8, "auto"), "auto")
    n_candidates: int = define_field(integer(1, 250), 32)
    split_method: str = define_field(one_of("totally_random", "hist", "partially_random"), "totally_random")
    weight_update: str = define_field(one_of("newton", "gradient", "averaging"), "newton")
    split_candidates: str = define_field(
        one_of("adaptive", "uniform", "log", *BY_HISTOGRAMS, "quantile"), "adaptive"
    )
    candidate_rounds: int = define_field(integer(1, 100), 5)
    interaction: str = define_field(one_of("auto", "cyclical", "random", "adaptive"), "auto")
    interaction_size: int | str = define_field(integer(1, 10_000, "all", "auto"), "auto")
    batch_size: int | str = define_field(integer(1, 100_000, "all"), 1)
    learning_rate: float | str = define_field(number(0, 10, "auto", exclusive=True), "auto")
    leaf_ridge: float = define_field(number(0, 1e9), 1.0)
    noise_ridge: float | str = define_field(number(0, 100, "auto"), "auto")
    leaf_clip: float = define_field(number(0, 1e6, exclusive=True), 2.0)
    joint_clip: float | str = define_field(number(0, 10, "auto", "none", exclusive=True), "auto")
    hessian_scale: float | str = define_field(number(0, 1000, "auto", exclusive=True), "auto")
    class_weights: tuple[float, ...] = define_field(list_of(number(1e-6, 1e6)), ())
    start: str = define_field(one_of("auto", "none", "mean", "linear"), "auto")
    shrinkage: float | str = define_field(number(0, 1, "auto"), "auto")
    calibration: str = define_field(one_of("auto", "none"), "auto")
    structure_seed: int | str = define_field(integer(0, MAX_STRUCTURE_SEED, "joint"), 0)
    interaction_constraints: tuple[tuple[str, ...], ...] = define_field(groups, ())


@allows({"type": ["number", "null"], "exclusiveMinimum": 0})
def _epsilon(value: Any, path: str) -> Any:
    """Check for a number above 0, or inf."""
    expected = "a number above 0 (inf for a model without privacy)"
    try:
        epsilon = number(0, math.inf)(value, path)
    except PlanError:
        raise refuse(path, value, expected) from None
    if epsilon == 0:
        raise refuse(path, value, expected)
    return epsilon


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Terms of the privacy promise.

    Attributes:
        epsilon: the limit on what a run reveals about one unit, above 0; inf trains without privacy.
        delta: a small probability beyond that limit.
        accountant: who counts. "gdp" is exact for Gaussian noise; "pld", by loss distributions, for samples and pure
            releases, is an extra that every party needs; "pure" adds epsilons up; "rdp" is the Renyi figure of papers,
            too large for Gaussian noise.
        noise: who adds the noise. "server": the coordinator, which sees exact totals; "distributed": the sites;
            "local": every record for itself.
        n_records: a public or declared number, never counted from the data; ideally the number of records that runs
            use, at most `max_rows_per_unit` of a unit. The default's rule and the room in sums depend on it; the
            promise does not.
        unit: whom the promise protects: "record", or the column that identifies the person or thing of a row.
        max_rows_per_unit: largest number of rows of a unit that each site uses; each site enforces it.
        sites_per_unit: largest number of sites at which a unit has rows. No site can check it, so it is declared; a
            process that reads all tables enforces it.
        bounds_from_data: states that bounds were read off the rows: the guarantee is void.
        line_breaks: further lines over which a quoted cell of a CSV may continue; the report says what that means.
    """

    epsilon: float = define_field(_epsilon)
    delta: float = define_field(number(0, 1, exclusive=True))
    accountant: str = define_field(one_of("gdp", "rdp", "pure", "pld"), "gdp")
    noise: str = define_field(one_of("server", "distributed", "local"), "server")
    n_records: int = define_field(integer(1, 10**15))
    unit: str = define_field(text, "record")
    max_rows_per_unit: int = define_field(integer(1, 10**6), 1)
    sites_per_unit: int = define_field(integer(1, 1000), 1)
    bounds_from_data: bool = define_field(boolean, False)
    line_breaks: int = define_field(integer(0, 1000), 0)

    @property
    def rows_per_unit(self) -> int:
        """Largest number of rows of one unit in a sum over all sites, a factor of every sensitivity."""
        return self.max_rows_per_unit * self.sites_per_unit


_WHO_SEES = {
    "none": "there is no noise on totals, or not on all: the coordinator, and whoever reads what was released, see "
    "them exactly, which can be one person's",
    "server": "the coordinator adds the noise: it sees exact totals over all sites, which can be one person's. It is "
    "trusted to add the noise and to keep them to itself; the promise holds against everybody else",
    "distributed": "the sites add the noise: nobody sees a total without it, the coordinator included, unless it and "
    "several sites work together (the report says how many)",
    "local": "each record's node adds the noise before anything leaves the site: nobody sees an exact total, but how "
    "many rows each site has is taken to be known",
    "groups": "a total is over the sites of a group",
    "votes": "each site says up to three times, with noise of its own, if the model so far predicts its rows badly",
    "own-figures": "figures of this site by itself are released too, for all to read, with noise of this site alone",
    "others-figures": "figures of single sites are released too, none of this one",
}


def who_sees(visibility: str) -> str:
    """Describe each party's view of a run's totals.

    Args:
        visibility: from `hedgerow.methods.tasks.find_visibility`.
    """
    return "; ".join(_WHO_SEES[word] for word in visibility.split())


@dataclass(frozen=True, kw_only=True)
class FederationSection:
    """Terms of taking part, and how long each party waits for the others (seconds, at least 1).

    Attributes:
        min_sites: smallest number of sites in a sum. Over a network at least three are needed in any case, or two if
            the sites add the noise and there are no groups.
        secure_aggregation: whether sums are masked.
        echo: whether nodes compare, before they unmask, what the coordinator told each of them: one more exchange a
            round. If not given: yes with distributed noise, of which less is then needed, and no with other noise.
        join_timeout: how long the coordinator waits for sites.
        round_timeout: how long it waits for their answers.
        idle_timeout: how long a node waits for its coordinator: at least as long as both others, or it would give up a
            run that is still open.
        salvage: whether a training that cannot go on ends with the model of the rounds released so far.
        groups: an odd number of groups of sites: each round has a sum over each group, and the middle values count; 0
            is one sum over all.
        votes: whether each site says three times, with noise of its own, if the model so far predicts its rows worse
            than a constant. Only with groups, for labels with classes; it costs 2 % of mu².
    """

    min_sites: int = define_field(integer(1, 100_000), 1)
    secure_aggregation: bool = define_field(boolean, True)
    echo: bool | None = define_field(boolean, None)
    join_timeout: float = define_field(number(0, 1e7, exclusive=True), 300.0)
    round_timeout: float = define_field(number(0, 1e7, exclusive=True), 60.0)
    idle_timeout: float = define_field(number(0, 1e7, exclusive=True), 3600.0)
    salvage: bool = define_field(boolean, True)
    groups: int = define_field(integer(0, 63), 0)
    votes: bool = define_field(boolean, False)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A noisy sum released before the run, from which parts of the plan were read.

    Such parts are bounds, the number of records, and classes (`hedgerow.survey`). The sum is on the account of
    everything made by the plan.

    Attributes:
        kind, subject: of its query.
        length: entries of the vector.
        sensitivity_squared: squared L2 sensitivity in integer units.
        sigma: standard deviation of the noise, in integer units; 0 without noise. With noise of the sites that of one
            share, with local noise that of one record.
        noise: "server", "distributed" or "local".
        sites, colluders, shares: with noise of the sites, the cohort that it was agreed among; else 0.
        seeded, approximate: whether the noise came from a seed, or was a rounded floating-point Gaussian.
        unit, rows_per_unit: the unit of privacy that the sensitivity is of, and rows of one unit at most, over all
            sites. A plan that protects another unit, or one with more rows, would report less than was spent.
        run: over nodes, the run that released it, in hex: it tells two surveys apart that found the same.
    """

    kind: str = define_field(text)
    subject: str = define_field(text)
    length: int = define_field(integer(1, 10**9))
    sensitivity_squared: int = define_field(integer(1, 2**120))
    sigma: int = define_field(integer(0, 2**53))
    noise: str = define_field(one_of("server", "distributed", "local"), "server")
    sites: int = define_field(integer(0, 100_000), 0)
    colluders: int = define_field(integer(0, 100_000), 0)
    shares: int = define_field(integer(0, 100_000), 0)
    seeded: bool = define_field(boolean, False)
    approximate: bool = define_field(boolean, False)
    unit: str = define_field(text, "record")
    rows_per_unit: int = define_field(integer(1, 10**9), 1)
    run: str | None = define_field(text, None)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A validated plan. Build one with `parse_plan` or `Plan.from_dict`; both check every field and every pair.

    `own` is the section of its method, None for a method without one. `loss` holds [loss], None for the label's usual
    loss. `prepared` are the releases from which its public parts were read, in their order: they were paid before the
    run, out of the same epsilon.
    """

    name: str
    features: tuple[Feature, ...]
    label: Label
    privacy: Privacy
    model: ModelSection = dataclasses.field(default_factory=ModelSection)
    federation: FederationSection = dataclasses.field(default_factory=FederationSection)
    own: Any = None
    loss: NamedLoss | None = None
    prepared: tuple[Prepared, ...] = ()
    omop: Omop | None = None

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], *, is_stored: bool = False) -> Plan:
        """Build a plan from plain values, as `tomllib` and `json` give them.

        Args:
            table: the plan's values.
            is_stored: it is a finished model's, or of a run that has begun. Versions before had no least timeouts, and
                such a plan can be corrected no more.

        Raises:
            PlanError: naming the first offending field and the fix.
        """
        try:
            require_plain(table, MAX_VALUES)
        except ValueError as error:
            raise PlanError("plan-not-plain", error=error) from None
        if (version := table.get("version")) is None:
            raise PlanError("plan-missing-field", path="plan", name="version", value=f" = {PLAN_VERSION}", also="")
        if isinstance(version, int) and version > PLAN_VERSION:
            raise PlanError("plan-newer-version", version=version, newest=PLAN_VERSION)
        if version != PLAN_VERSION or isinstance(version, bool):
            raise refuse("version", version, str(PLAN_VERSION))
        # Read [model] before checking section names, so that an unknown method is reported and not its unknown section.
        model = read_section(ModelSection, table.get("model", {}), "model")
        known = {"version", "name", "model", "privacy", "label", "features", "federation", "prepared", "loss", "omop"}
        known |= set(sections())
        for name in table:
            if name not in known:
                raise PlanError("plan-unknown-field", path="plan", name=name, fields=", ".join(sorted(known)))
        features = table.get("features")
        if not isinstance(features, list | tuple) or not features:
            raise refuse("features", features, "at least one [[features]] table")
        prepared = table.get("prepared", [])
        if not isinstance(prepared, list | tuple):
            raise refuse("prepared", prepared, "[[prepared]] tables, as a survey writes them")
        privacy = read_section(Privacy, table.get("privacy", {}), "privacy")
        federation = read_section(FederationSection, table.get("federation", {}), "federation")
        if federation.echo is None:
            federation = dataclasses.replace(federation, echo=privacy.noise == "distributed")
        plan = cls(
            name=text(table.get("name", "plan"), "name"),
            privacy=privacy,
            features=tuple(read_feature(item, f"features[{i}]") for i, item in enumerate(features)),
            label=read_section(Label, table.get("label", {}), "label"),
            model=model,
            federation=federation,
            loss=_read_loss(table.get("loss")),
            own=_own_section(table, model),
            prepared=tuple(read_section(Prepared, item, f"prepared[{i}]") for i, item in enumerate(prepared)),
            omop=read_omop(table.get("omop")),
        )
        check_consistency(plan)
        if not is_stored:
            _check_timeouts(plan.federation)
        return plan

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `from_dict` builds an equal plan; unset fields are left out."""
        table: dict[str, Any] = {"version": PLAN_VERSION, "name": self.name}
        for section in ("model", "privacy", "label", "federation"):
            table[section] = _plain(getattr(self, section))
        if self.privacy.sites_per_unit == 1:
            # Omit a default that older plans did not have, so that their digests stay the same.
            del table["privacy"]["sites_per_unit"]
        if self.privacy.line_breaks == 0:
            del table["privacy"]["line_breaks"]
        if self.federation.salvage:
            del table["federation"]["salvage"]
        if not self.federation.groups:
            del table["federation"]["groups"]
        if not self.federation.votes:
            del table["federation"]["votes"]
        if self.label.origin == DECLARED:
            del table["label"]["origin"]
        for name in ("start", "shrinkage", "calibration"):
            if table["model"][name] == "auto":
                del table["model"][name]
        if self.model.algorithm == DEFAULT_ALGORITHM:
            # Omit the method of boosted trees, as plans did when it was the only one, so that their digests stay the
            # same.
            del table["model"]["algorithm"]
        if self.own is not None:
            own = _plain_part(self.own)
            table |= {} if own is None else {section_name(self.model.algorithm): own}
        if self.loss is not None:
            table["loss"] = {"name": self.loss.name, **_plain_part(self.loss)}
        table["features"] = [_plain_feature(feature) for feature in self.features]
        if self.prepared:
            table["prepared"] = [_plain(release) for release in self.prepared]
        if self.omop is not None:
            table["omop"] = write_omop(self.omop)
        return table

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal plans give equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=True).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `to_bytes`, in hexadecimal: two parties with equal digests hold the same plan."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def has_joint_structure(self) -> bool:
        """True while the seed of the trees' structure is still to be drawn by the sites."""
        return isinstance(self.model.structure_seed, str)

    def with_one_sum(self) -> Plan:
        """Return the plan without groups of sites, as evaluations and each single group use it."""
        if not self.federation.groups:
            return self
        return dataclasses.replace(self, federation=dataclasses.replace(self.federation, groups=0, votes=False))

    def with_structure_seed(self, seed: int) -> Plan:
        """Return the plan with the seed drawn by the sites; a plan with a seed of its own stays as it is."""
        if not self.has_joint_structure:
            return self
        return dataclasses.replace(self, model=dataclasses.replace(self.model, structure_seed=seed))

    def with_joint_structure(self) -> Plan:
        """Return the plan with the seed of the trees left to the sites."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, structure_seed="joint"))

    def is_run_of(self, agreed: Plan, *, is_model: bool = True) -> bool:
        """Return whether this plan is the agreed one.

        Args:
            is_model: whether this plan may have the seed drawn by the sites in place of "joint", as a model's plan has.
        """
        seed = self.model.structure_seed
        own = agreed.with_structure_seed(seed) if is_model and isinstance(seed, int) else agreed
        return self.digest == own.digest

    @property
    def reads_quantiles(self) -> bool:
        """True if the run asks for exact counts of the features' values, not hidden by noise."""
        return self.model.split_candidates == "quantile"

    @property
    def reads_rows(self) -> bool:
        """True if something declared public was read off the private rows."""
        origins = [self.label.origin, *(feature.origin for feature in self.features)]
        return self.privacy.bounds_from_data or READ_OFF in origins

    @property
    def loss_text(self) -> str:
        """Loss named in [loss] with its parameters, for a person; "" for the usual loss."""
        if self.loss is None:
            return ""
        return ", ".join([self.loss.name, *(f"{name} = {value}" for name, value in _plain_part(self.loss).items())])

    @property
    def known(self) -> tuple[str, ...]:
        """Statements about features that the model will keep to, for a person; empty if there are none."""
        said = []
        for word, verb in (("increasing", "never falls"), ("decreasing", "never rises")):
            names = [feature.name for feature in self.features if feature.monotone == word]
            if names:
                said.append(f"{verb} with {name_first(names)}")
        groups = self.model.interaction_constraints
        if groups:
            rest = [name for name in self.feature_names if not any(name in group for group in groups)]
            parts = [f"({name_first(group)})" for group in (*groups, *([rest] if rest else []))]
            said.append(f"only these meet: {name_first(parts)}")
        return tuple(said)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)


def read_table(toml_text: str) -> dict[str, Any]:
    """Read the text of a plan, or of a plan's source, into a table without checking its values.

    Raises:
        PlanError: code "plan-syntax".
    """
    try:
        return parse_toml(toml_text)
    except ValueError as error:
        raise PlanError("plan-syntax", code="plan-syntax", error=error) from None


def parse_plan(toml_text: str) -> Plan:
    """Read a plan from the text of its TOML file.

    Raises:
        PlanError: when it is not TOML, is of a newer version, or a field is wrong. Where that is a gap which a draft
            has left, all its gaps are named, each with its line.
    """
    table = read_table(toml_text)
    try:
        return Plan.from_dict(table)
    except PlanError as error:
        gaps = _gaps(toml_text, table)
        first = next((gap for gap in gaps if error.path in gap.paths), None)
        if first is None:
            raise
        error.remedy += f" Line {first.line} waits for it: write what is right there, without the # at its beginning."
        others = [gap for gap in gaps if gap is not first]
        if others:
            error.remedy += f" {_list_gaps(others)}"
        raise


@dataclass(frozen=True)
class _Gap:
    """A comment in a draft in place of a field.

    Attributes:
        line: its number.
        section: "privacy", or "features[3]".
        title: what a person calls the section: a column's name, else `section`.
        field: the field's name.
    """

    line: int
    section: str
    title: str
    field: str

    @property
    def paths(self) -> tuple[str, str]:
        """The field's path, with the column's name in it and without."""
        return f"{self.section}.{self.field}", f"{self.section} ({self.title}).{self.field}"


_IDLE = {
    "categorical": {"min", "max"}, "numeric": {"categories"}, "date": {"categories"},
    "hashed": {"min", "max", "categories"},
}  # fmt: skip
"""Fields that do not apply to a type of feature; a draft has lines for all of them."""


_NEVER_READ_OFF = " It is public: from a code book or common knowledge, rather too wide than too narrow."


def _gaps(toml_text: str, table: Mapping[str, Any]) -> list[_Gap]:
    """List all lines that wait for a value not given elsewhere, except guesses that may be left out."""
    gaps: list[_Gap] = []
    section, n_features = "", 0
    place: Any = {}
    for count, line in enumerate(toml_text.split("\n"), start=1):
        header = re.match(r"\[\[?(\w+)\]\]?", line)
        if header is not None and header[1] == "features" and line.startswith("[["):
            features = table.get("features")
            section, n_features = f"features[{n_features}]", n_features + 1
            place = features[n_features - 1] if isinstance(features, list) and n_features <= len(features) else {}
        elif header is not None:
            section, place = header[1], table.get(header[1], {})
        waiting = re.match(r"#\s*(\w+)\s*=.*# FILL IN", line)
        if waiting is None or not isinstance(place, Mapping):
            continue
        field = waiting[1]
        idle = _idle_fields(section, place.get("type"))
        if field in place or field in idle:
            continue
        title = str(place.get("name", section)) if section.startswith(("features", "label")) else section
        gaps.append(_Gap(count, section, title, field))
    return gaps


def _idle_fields(section: str, kind: object) -> set[str]:
    if section == "label":
        classes = {"binary", "multiclass"}
        if kind == "survival":
            return {"min", "max", "classes"}
        return set() if kind is None else {"min", "max"} if kind in classes else {"classes"}
    return _IDLE.get(str(kind), set())


def _list_gaps(gaps: list[_Gap]) -> str:
    """List the other gaps, section by section."""
    by_section: dict[str, list[_Gap]] = {}
    for gap in gaps:
        by_section.setdefault(gap.section, []).append(gap)
    said = [
        f"{waiting[0].title} ({', '.join(f'{gap.field} in line {gap.line}' for gap in waiting)})"
        for waiting in by_section.values()
    ]
    return f"{len(gaps)} other lines wait as well: {'; '.join(said)}." if len(gaps) > 1 else f"So does {said[0]}."


def name_first(names: Sequence[str]) -> str:
    """Names for a person, the first of many."""
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _plain(section: Any) -> dict[str, Any]:
    # A shallow copy is enough: sections hold only numbers, texts and tuples of these.
    values = {each.name: getattr(section, each.name) for each in dataclasses.fields(section)}
    kept = {name: value for name, value in values.items() if value is not None and value != ()}
    return {name: _to_lists(value) for name, value in kept.items()}


def _plain_part(part: Any) -> Any:
    """Return a section or a loss as plain values, even if its reader is not installed."""
    return part.values if isinstance(part, AbsentMethod | AbsentLoss) else _plain(part)


def _to_lists(value: Any) -> Any:
    return [_to_lists(each) for each in value] if isinstance(value, tuple) else value


def _plain_feature(feature: Feature) -> dict[str, Any]:
    table = _plain(feature)
    if feature.is_hashed:
        # The categories follow from the number of buckets.
        del table["categories"]
    if feature.origin == DECLARED:
        del table["origin"]
    if feature.is_date:
        table |= {name: format_day(table[name]) for name in ("min", "max") if name in table}
    return table


def read_feature(table: Any, path: str) -> Feature:
    """Read a [[features]] table; bounds of a date are ISO 8601, or numbers of days since 1970-01-01.

    Raises:
        PlanError: naming the field that is wrong.
    """
    if isinstance(table, Mapping) and table.get("type") == "date":
        dates = {name: table[name] for name in ("min", "max") if table.get(name) is not None}
        table = {**table, **{name: _days(value, f"{path}.{name}") for name, value in dates.items()}}
    return read_section(Feature, table, path)


def _days(value: Any, path: str) -> float:
    """Convert a date's bound to days since 1970-01-01."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return parse_day(format_day(value) if is_number else value)
    except (OverflowError, TypeError, ValueError):
        expected = 'a date of the years 1 to 9999, in quotation marks: "2020-01-31" or "2020-01-31T12:30:00"'
        raise refuse(path, value, expected) from None


def _read_loss(table: Any) -> NamedLoss | None:
    """Read the named loss of a [loss] section."""
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise refuse("loss", table, "a table with a name, and the parameters of that loss")
    name = _require_known(table.get("name"), "loss.name", named_losses())
    parameters = {field: value for field, value in table.items() if field != "name"}
    return read_section(named_losses()[name], parameters, "loss")


def _own_section(table: Mapping[str, Any], model: ModelSection) -> Any:
    """Read the section of a plan's method.

    Raises:
        PlanError: a section of another method, or a field of [model] that the method does not read.
    """
    for word in rules_by_method():
        if word != model.algorithm and section_name(word) in table:
            expected = f'"{word}" in a plan with the section [{section_name(word)}]'
            raise refuse("model.algorithm", model.algorithm, expected)
    rules = rules_by_method()[model.algorithm]
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if (
            rules.model_fields is not None
            and field.name not in {"algorithm", "interaction_constraints", *rules.model_fields}
            and value != field.default
        ):
            shown = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
            raise refuse(f"model.{field.name}", value, f'{shown} (its default) with "{model.algorithm}"')
    name = section_name(model.algorithm)
    return None if rules.section is None else read_section(rules.section, table.get(name, {}), name)


def check_consistency(plan: Plan) -> None:
    """Check rules over several fields: pairs of fields, and names across sections.

    Raises:
        PlanError: naming the field to change.
    """
    names = plan.feature_names
    for index, feature in enumerate(plan.features):
        path = f"features[{index}] ({feature.name})"
        if names.count(feature.name) > 1:
            raise refuse(path, feature.name, "a name that no other feature has")
        if feature.name in plan.label.columns:
            raise refuse(path, feature.name, "a column that is not the label")
        _check_feature(feature, path)
    _check_label(plan.label)
    _check_privacy(plan)
    if plan.omop is not None:
        check_omop(plan.omop, names, plan.label, plan.privacy.unit)
    rules = rules_by_method()[plan.model.algorithm]
    _check_prepared(plan, rules)
    if plan.privacy.accountant == "pure" and not rules.is_pure:
        raise refuse("privacy.accountant", "pure", '"gdp" with an algorithm whose noise is Gaussian')
    if rules.labels is not None and plan.label.type not in rules.labels:
        words = " or ".join(f'"{word}"' for word in rules.labels)
        raise refuse("label.type", plan.label.type, f'{words} with "{plan.model.algorithm}"')
    _check_loss(plan, rules)
    rules.check(plan)
    _check_constraints(plan, rules)
    _check_groups(plan, rules)
    if plan.reads_quantiles and plan.model.weight_update == "averaging":
        raise refuse("model.split_candidates", "quantile", 'candidates without quantiles for "averaging"')
    size = plan.model.interaction_size
    if isinstance(size, int) and size > len(names):
        raise refuse("model.interaction_size", size, f"at most {len(names)}, the number of features")
    if plan.model.interaction == "adaptive" and plan.model.split_method != "totally_random":
        raise refuse("model.interaction", "adaptive", f'"cyclical" or "random" with "{plan.model.split_method}" splits')
    batch, trees = plan.model.batch_size, plan.model.n_trees
    if isinstance(batch, int) and isinstance(trees, int) and batch > trees:
        raise refuse("model.batch_size", batch, f"at most n_trees = {trees}")


def _check_loss(plan: Plan, rules: PlanRules) -> None:
    """Check that a named loss fits the method and the label's type."""
    if plan.loss is None:
        return
    if not rules.reads_loss:
        raise refuse("loss.name", plan.loss.name, f'no [loss] with "{plan.model.algorithm}", which has its own')
    if plan.label.type not in plan.loss.labels:
        words = " or ".join(f'"{word}"' for word in plan.loss.labels)
        raise refuse("label.type", plan.label.type, f'{words} with the loss "{plan.loss.name}"')
    if plan.model.weight_update == "averaging":
        raise refuse("model.weight_update", "averaging", '"newton" or "gradient" with [loss]: means have none')


def _check_groups(plan: Plan, rules: PlanRules) -> None:
    """Check that groups of sites are used only with plain sums and Gaussian noise.

    Choices, samples, streams and exact counts have one sum.
    """
    n_groups = plan.federation.groups
    if plan.federation.votes:
        _check_votes(plan)
    if not n_groups:
        return
    if n_groups % 2 == 0 or n_groups == 1:
        raise refuse("federation.groups", n_groups, "an odd number from 3 on, or none")
    if not rules.is_grouped or plan.reads_quantiles:
        what = "split_candidates" if rules.is_grouped else f"{plan.model.algorithm}"
        raise refuse("federation.groups", n_groups, f'none with "{what}", whose releases are no plain sums over leaves')
    if plan.privacy.noise == "local":
        raise refuse("federation.groups", n_groups, 'none with privacy.noise = "local"')
    if plan.privacy.sites_per_unit > 1:
        raise refuse("federation.groups", n_groups, "none where privacy.sites_per_unit is above 1")


def _check_votes(plan: Plan) -> None:
    if not plan.federation.groups:
        raise refuse("federation.votes", True, "false without federation.groups, of which votes are the reference")
    if not plan.label.classes:
        raise refuse("federation.votes", True, "false but for labels with classes")
    if math.isinf(plan.privacy.epsilon):
        raise refuse("federation.votes", True, "false where epsilon is infinite: nothing would hide a site's rows")


def _check_label(label: Label) -> None:
    for other in label_kinds().values():
        for name in other.own_fields:
            value = getattr(label, name)
            if value and name not in label.kind.own_fields:
                found = value if isinstance(value, str) else list(value)
                raise refuse(f"label.{name}", found, f'no {name} but with type = "{other.type}"')
    label.kind.check(label)


def _check_constraints(plan: Plan, rules: PlanRules) -> None:
    groups = plan.model.interaction_constraints
    if groups and not rules.is_constrained:
        raise refuse("model.interaction_constraints", f"{len(groups)} groups", f'none with "{plan.model.algorithm}"')
    for index, feature in enumerate(plan.features):
        path = f"features[{index}] ({feature.name}).monotone"
        if feature.monotone is None:
            continue
        if feature.is_categorical:
            raise refuse(path, feature.monotone, f"none on a {feature.type} feature, whose values have no order")
        if plan.label.n_outputs > 1:
            raise refuse(path, feature.monotone, "none with three classes or more, whose chances cannot all rise")
        if not rules.is_constrained:
            raise refuse(path, feature.monotone, f'none with "{plan.model.algorithm}"')
    for index, group in enumerate(groups):
        for name in group:
            if name not in plan.feature_names:
                raise refuse(f"model.interaction_constraints[{index}]", name, "the name of a feature")


def _check_prepared(plan: Plan, rules: PlanRules) -> None:
    if not plan.prepared:
        # Refuse "found" without releases: the cost of finding would be on no account.
        origins = {"label": plan.label.origin}
        origins |= {f"features[{i}]": feature.origin for i, feature in enumerate(plan.features)}
        for path, origin in origins.items():
            if origin == FOUND:
                raise refuse(f"{path}.origin", FOUND, f'"{DECLARED}" in a plan without [[prepared]] releases')
        return
    if not rules.counts_prepared:
        raise refuse("prepared", f"{len(plan.prepared)} releases", f'none with "{plan.model.algorithm}"')
    if plan.privacy.accountant == "pure":
        raise refuse("privacy.accountant", "pure", '"gdp" or "pld" in a plan with [[prepared]] releases')
    privacy = plan.privacy
    for index, release in enumerate(plan.prepared):
        if not release.kind.isidentifier():
            raise refuse(f"prepared[{index}].kind", release.kind, "the name of a kind of query")
        if release.unit != privacy.unit:
            raise refuse(f"prepared[{index}].unit", release.unit, f'"{privacy.unit}", which is privacy.unit')
        if release.rows_per_unit < privacy.rows_per_unit:
            expected = f"at least {privacy.rows_per_unit}, the rows of one unit that [privacy] allows"
            raise refuse(f"prepared[{index}].rows_per_unit", release.rows_per_unit, expected)
        if release.sigma and release.noise != privacy.noise:
            raise refuse(f"prepared[{index}].noise", release.noise, f'"{privacy.noise}", which is privacy.noise')
        is_shared = release.noise == "distributed"
        if (release.shares > 0) != is_shared or release.shares > release.sites - release.colluders:
            raise refuse(f"prepared[{index}].shares", release.shares, "a cohort with noise of the sites, and only then")


def _check_timeouts(federation: FederationSection) -> None:
    for name in ("join_timeout", "round_timeout", "idle_timeout"):
        seconds = getattr(federation, name)
        if seconds < MIN_SECONDS:
            raise refuse(f"federation.{name}", seconds, f"at least {MIN_SECONDS:g} (seconds)")
    least = max(federation.join_timeout, federation.round_timeout)
    if federation.idle_timeout < least:
        reason = f"at least {least:g}, which join_timeout and round_timeout are at most"
        raise refuse("federation.idle_timeout", federation.idle_timeout, reason)


MAX_FEATURE_BOUND = 3e38
"""Single precision ends a little above; no bound that is read off or found lies beyond."""


def _check_feature(feature: Feature, path: str) -> None:
    if feature.is_hashed:
        if feature.buckets is None:
            raise refuse(f"{path}.buckets", None, f"a number of buckets from 2 to {MAX_CATEGORIES}")
        if feature.categories != bucket_names(feature.buckets):
            raise refuse(f"{path}.categories", list(feature.categories), "no categories on a hashed feature")
    elif feature.buckets is not None:
        raise refuse(f"{path}.buckets", feature.buckets, 'no buckets but with type = "hashed"')
    if feature.is_categorical:
        if not feature.categories:
            raise PlanError("plan-missing-field", path=path, name="categories", value="", also=_NEVER_READ_OFF)
        if len(feature.categories) > MAX_CATEGORIES:
            raise refuse(f"{path}.categories", len(feature.categories), f"at most {MAX_CATEGORIES} categories")
        if feature.min is not None or feature.max is not None:
            raise refuse(path, "min or max", "no bounds on a categorical feature")
    if feature.format is not None and not feature.is_date:
        raise refuse(f"{path}.format", feature.format, 'no format but with type = "date"')
    if feature.is_categorical:
        return
    check_bounds(feature.min, feature.max, path, format_day if feature.is_date else float)
    if feature.categories:
        raise refuse(f"{path}.categories", list(feature.categories), f"no categories on a {feature.type} feature")


def check_bounds(low: float | None, high: float | None, path: str, said: Callable[[float], object] = float) -> None:
    """Raise PlanError unless there are two bounds, the lower one first; `said` puts one into words."""
    for name, value in (("min", low), ("max", high)):
        if value is None:
            raise PlanError("plan-missing-field", path=path, name=name, value="", also=_NEVER_READ_OFF)
    if low is not None and high is not None and not low < high:
        raise refuse(f"{path}.max", said(high), f"a value above min = {said(low)}")


def _check_privacy(plan: Plan) -> None:
    privacy = plan.privacy
    _epsilon(privacy.epsilon, "privacy.epsilon")
    if privacy.unit == "record" and privacy.max_rows_per_unit != 1:
        raise refuse("privacy.max_rows_per_unit", privacy.max_rows_per_unit, '1 when privacy.unit is "record"')
    if privacy.unit == "record" and privacy.sites_per_unit != 1:
        raise refuse("privacy.sites_per_unit", privacy.sites_per_unit, '1 when privacy.unit is "record"')
    if privacy.noise == "distributed" and not plan.federation.secure_aggregation:
        raise refuse("federation.secure_aggregation", False, 'true when privacy.noise is "distributed"')
    if privacy.unit in (*plan.feature_names, *plan.label.columns):
        expected = 'an identifier column that is no feature, or "record", each row, which is no column\'s name then'
        raise refuse("privacy.unit", privacy.unit, expected)
