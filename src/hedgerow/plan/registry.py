# SPDX-License-Identifier: Apache-2.0
"""What a plan asks of losses and methods, of which it knows no more than this: types of labels, sections, checks.

Both stand above plans, so they are added from there (`hedgerow.losses.registry`, `hedgerow.methods.registry`). That
happens when a plan is first read: `hedgerow/__init__.py` says what to load then.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

Section = TypeVar("Section")
Member = TypeVar("Member")


class Registry(MutableMapping[str, Member]):
    """Members of one kind by name; a name can be taken only once (UsageError, code "name-taken").

    Otherwise an added member could run under another one's name, in plans that were agreed on and in reports. The
    registry is no dict because `dict.update` would replace members unasked.

    Args:
        kind: what a member is, for the error.
        adders: who added what, where another registry holds parts of the same; None for one of its own.

    Attributes:
        adders: the modules of other packages by the names of the members that they added.
    """

    def __init__(self, kind: str, adders: dict[str, str] | None = None) -> None:
        self._kind = kind
        self._members: dict[str, Member] = {}
        self.adders = {} if adders is None else adders

    def __setitem__(self, name: str, member: Member) -> None:
        if name in self:
            # Imported here, because `import hedgerow` makes the two empty registries and must load nothing else.
            from hedgerow.errors import UsageError

            raise UsageError("name-taken", kind=self._kind, name=name)
        self._members[name] = member
        if module := _find_other_package():
            self.adders[name] = module

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __delitem__(self, name: str) -> None:
        del self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _find_other_package() -> str:
    """Return the module that adds a member, "" for one of Hedgerow's own.

    It is read from the call stack: a member's class, or `__module__` of its functions, may be copied from Hedgerow.
    """
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "hedgerow":
            return module
        # Hedgerow's own members are added while a module of Hedgerow is imported.
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back
    return ""


@dataclass(frozen=True)
class LabelColumn:
    """A source column of a label.

    Attributes:
        name: of the column.
        words: what its cells may say, in the order of their codes; empty where they are numbers.
        bounds: of numbers; None for words.
        least: of numbers: rows with less are left out; None where none is.
        outside: makes the DataError for a cell that is not among the words, or below the least, of its place and value.
    """

    name: str
    words: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    least: float | None = None
    outside: Callable[[str, str], Exception] | None = None


class LabelKind(ABC):
    """A type of label, and what others ask of it: a subclass for each, see `hedgerow.losses.labels`.

    What else goes by a kind, as a method's rule, is a table in its own room. This room does without numpy, whose arrays
    these are.

    Attributes:
        type: as `label.type` has it.
        hint: what a draft says of it, as in '"binary" with two classes'.
        own_fields: fields of [label] that other types leave out.
        is_number: whether nodes keep it scaled from its public bounds to [-1, 1], in units of 2**-16.
        is_symmetric: whether scores of the other sign say the same of the label the other way round.
        predicts: what a model says of it: "probabilities", "values", or "survival".
        refusals: by what its models cannot say what makes the error for those who ask: "probabilities", "probability
            columns", "interval", "survival", or an explainable boosting "machine".
        position: what an evaluation counts records by, see `hedgerow.evaluation.sums`.
    """

    type: ClassVar[str]
    hint: ClassVar[str]
    own_fields: ClassVar[tuple[str, ...]] = ()
    is_number: ClassVar[bool] = False
    is_symmetric: ClassVar[bool] = False
    predicts: ClassVar[str]
    refusals: ClassVar[Mapping[str, Callable[[], Exception]]]
    position: ClassVar[str]

    @abstractmethod
    def check(self, label: Any) -> None:
        """Check a label of this type; raise PlanError if it contradicts itself."""

    def n_outputs(self, label: Any) -> int:
        """Scores per record."""
        return 1

    def n_codes(self, label: Any) -> int:
        """Return the number of codes, from 0 on, by which a node keeps the label; 0 for numbers."""
        return 0

    def encoded_range(self, label: Any) -> tuple[int, int]:
        """Return the smallest and the largest value that a node keeps."""
        return 0, self.n_codes(label) - 1

    @abstractmethod
    def columns(self, label: Any) -> tuple[LabelColumn, ...]:
        """Return the columns from which the label is read."""

    @abstractmethod
    def values(self, cells: Sequence[Any], label: Any) -> Any:
        """Convert cells of the label's columns to labels [n]: float64 numbers, or codes, below 0 for unknown."""

    def encode(self, values: Any, label: Any) -> Any:
        """Encode `values` as a node keeps them: int32 [n]."""
        return values.astype("int32")

    def centre(self, kept: Any) -> Any:
        """Centre labels about 0, in units of 2**-16 of half their range: int64 [n].

        Raises:
            ValueError: labels without a range.
        """
        raise ValueError(f"labels of type {self.type} have no range")

    def has_one_outcome(self, kept: Any) -> bool:
        """Return whether the labels show at most one outcome of several."""
        return False

    def doubt(self, counts: Any, label: Any) -> str:
        """Advise what to check if labels look wrong; "" if they look right.

        Args:
            counts: records by their code, int [n_codes].
        """
        return ""

    @abstractmethod
    def simulate(self, effects: Any, label: Any, noise: Any) -> Any:
        """Made-up labels, as of `values`.

        Args:
            effects: float64 [n_outputs, n], of mean 0 and standard deviation `EFFECT`.
            noise: a numpy Generator.
        """

    @abstractmethod
    def describe(self, label: Any) -> str:
        """Describe the label's classes, bounds or intervals in a few words."""

    def header(self, label: Any) -> list[str]:
        """Return the columns of the label's predictions in a table."""
        return [f"predicted_{label.name}"]


class NamedLoss(ABC):
    """A loss named in [loss] in place of a label's usual one: a dataclass with its parameters as fields.

    Attributes:
        name: as `loss.name` has it.
        labels: types of labels that it is for.
    """

    name: ClassVar[str]
    labels: ClassVar[tuple[str, ...]]

    @abstractmethod
    def kind(self, label: Any) -> Any:
        """Make the loss with these parameters for this label: a `hedgerow.losses.kinds.LossKind`."""


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """Rules for writing plans of one method.

    Attributes:
        section: the dataclass of its own section, which is called as the method, with "_" for "-"; None without one.
        model_fields: the fields of [model] that it reads, None for all; others would be ignored, so they are refused.
        labels: types of labels that it is for; None for all.
        reads_loss: whether it carries out the losses that [loss] names; plans of others with one are refused.
        is_pure: whether its releases are of pure differential privacy.
        is_constrained: whether its scores go with a feature as `Feature.monotone` says, and which features meet as
            `ModelSection.interaction_constraints` do; plans of others with either are refused.
        counts_prepared: whether it calibrates its noise to what is left beside releases made before (`Plan.prepared`).
        is_grouped: whether sums may be taken by group of sites, of which the middle counts (`federation.groups`).
        choose_accountant: the accountant that a draft of this plan names: none counts its releases more closely.
        version: of a method of another package, for reports.
        check: raises PlanError for a plan that contradicts itself; its own section is `plan.own`.
    """

    section: type[Any] | None = None
    model_fields: frozenset[str] | None = None
    labels: tuple[str, ...] | None = None
    reads_loss: bool = False
    is_pure: bool = False
    is_constrained: bool = False
    counts_prepared: bool = False
    is_grouped: bool = False
    choose_accountant: Callable[[Any], str] = lambda plan: "gdp"
    version: str = ""
    check: Callable[[Any], None] = lambda plan: None


@dataclass(frozen=True)
class AbsentMethod:
    """Stand-in for the section of a method that is not installed, so that a model's plan can be read.

    Attributes:
        values: of the section; None without one.
        module, version: of the method, as the model's file says.
    """

    values: Mapping[str, Any] | None
    module: str
    version: str


@dataclass(frozen=True)
class AbsentLoss(NamedLoss):
    """Stand-in for a named loss that is not installed.

    Attributes:
        name, values: as the plan has them.
        module, version: of the loss, as the model's file says.
        link: what its scores mean, by the name of a link that other losses have as well.
    """

    name: str  # type: ignore[misc]
    values: Mapping[str, Any]
    module: str
    version: str
    link: str

    def kind(self, label: Any) -> Any:
        """Raise ValueError; `hedgerow.losses.registry.loss_kind` gives what is known without the loss."""
        raise ValueError(f"the loss {self.name} is not installed")


def list_foreign_parts(plan: Any) -> list[dict[str, str]]:
    """List the parts of a plan that are not Hedgerow's: kind, name, module and version of each."""
    rules, named, loss = rules_by_method(), getattr(plan.loss, "name", ""), type(plan.loss)
    found = []
    for what, name, part, adder in (
        ("type of label", plan.label.type, plan.label.kind, LABEL_ADDERS.get(plan.label.type)),
        # A loss made in Python may differ from the registered loss of the same name.
        ("loss", named, plan.loss, _LOSSES.adders.get(named) if _LOSSES.get(named) is loss else loss.__module__),
        ("method", plan.model.algorithm, rules.get(plan.model.algorithm), METHOD_ADDERS.get(plan.model.algorithm)),
    ):
        own = plan.own if what == "method" and isinstance(plan.own, AbsentMethod) else part
        module = own.module if isinstance(own, AbsentMethod | AbsentLoss) else adder
        if own is not None and module is not None:
            found.append({"what": what, "name": name, "module": module, "version": getattr(own, "version", "")})
    return found


LABEL_ADDERS: dict[str, str] = {}
METHOD_ADDERS: dict[str, str] = {}
"""Modules that add types of labels and methods, shared with the registries of their code in the rooms above."""
_LABELS: Registry[LabelKind] = Registry("type of label", LABEL_ADDERS)
_RULES: Registry[PlanRules] = Registry("method", METHOD_ADDERS)
_LOSSES: Registry[type[NamedLoss]] = Registry("loss")
_WAITING: list[Callable[[], object]] = []


def on_first_use(load: Callable[[], object]) -> None:
    """Register a function that adds members; it is called before the first look-up here."""
    _WAITING.append(load)


def _load() -> None:
    while _WAITING:
        _WAITING.pop()()


def add_label(kind: LabelKind) -> None:
    """Let plans have labels of this type."""
    _LABELS[kind.type] = kind


def label_kinds() -> Mapping[str, LabelKind]:
    """Return every type of label by its name."""
    _load()
    return _LABELS


def add_named_loss(loss: type[NamedLoss]) -> None:
    """Let plans name this loss in [loss]."""
    _LOSSES[loss.name] = loss


def named_losses() -> Mapping[str, type[NamedLoss]]:
    """Return every loss that [loss] may name, by its name."""
    _load()
    return _LOSSES


def add_rules(method: str, rules: PlanRules) -> None:
    """Register the rules of plans that name this method, in place of earlier ones."""
    # Two names with one section are one name.
    taken = {section_name(other): other for other in _RULES}
    _RULES[taken.get(section_name(method), method)] = rules


def rules_by_method() -> Registry[PlanRules]:
    """Return the rules of every method by its name."""
    _load()
    return _RULES


def section_name(method: str) -> str:
    """Return the name of a method's section."""
    return method.replace("-", "_")


def sections() -> dict[str, type[Any]]:
    """Return every method's section class by the section's name."""
    return {section_name(name): rules.section for name, rules in rules_by_method().items() if rules.section is not None}


def own_section(section: type[Section], plan: Any) -> Section:
    """Return a plan's section of its method; ValueError if it is of another class."""
    if not isinstance(plan.own, section):
        raise ValueError(f"a plan of {plan.model.algorithm} has no section {section.__name__}")
    return plan.own
