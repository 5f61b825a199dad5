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
    """What there is of a kind, by name; a name that is taken is refused (UsageError, code "name-taken").

    What is added would else run under another one's name: in plans that were agreed on, and in reports. So it is no
    dict, whose `update` asks nobody.

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
            # Not above: `import hedgerow` makes the two empty lists, and loads nothing else.
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
    """The module that adds a member, "" for one of Hedgerow's own.

    A member is not asked: its class, or what `__module__` says of its functions, may be copied from one that is here.
    """
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "hedgerow":
            return module
        # Hedgerow's own are added where a room is imported.
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back
    return ""


@dataclass(frozen=True)
class LabelColumn:
    """A column that a label is read from.

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
        """Raise PlanError for a label of this type that contradicts itself."""

    def n_outputs(self, label: Any) -> int:
        """Scores per record."""
        return 1

    def n_codes(self, label: Any) -> int:
        """What a node keeps of a label that is no number is a code from 0 to `n_codes` - 1; 0 for numbers."""
        return 0

    def encoded_range(self, label: Any) -> tuple[int, int]:
        """The least and the largest that a node keeps."""
        return 0, self.n_codes(label) - 1

    @abstractmethod
    def columns(self, label: Any) -> tuple[LabelColumn, ...]:
        """The columns that it is read from."""

    @abstractmethod
    def values(self, cells: Sequence[Any], label: Any) -> Any:
        """Labels [n] of the cells of its columns: numbers, float64, or codes of words, below 0 where there is none."""

    def encode(self, values: Any, label: Any) -> Any:
        """What a node keeps of `values`: int32 [n]."""
        return values.astype("int32")

    def centre(self, kept: Any) -> Any:
        """Labels about 0, in units of 2**-16 of half their range: int64 [n]; ValueError where they have no range."""
        raise ValueError(f"labels of type {self.type} have no range")

    def has_one_outcome(self, kept: Any) -> bool:
        """Whether of several outcomes these labels have one at most."""
        return False

    def doubt(self, counts: Any, label: Any) -> str:
        """What to look at where labels look wrong, else "".

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
        """Its classes, its bounds or its intervals in a few words."""

    def header(self, label: Any) -> list[str]:
        """The columns of its predictions in a table."""
        return [f"predicted_{label.name}"]


class NamedLoss(ABC):
    """A loss that [loss] names in place of a label's usual one: a dataclass, whose fields are its parameters.

    Attributes:
        name: as `loss.name` has it.
        labels: types of labels that it is for.
    """

    name: ClassVar[str]
    labels: ClassVar[tuple[str, ...]]

    @abstractmethod
    def kind(self, label: Any) -> Any:
        """The loss with these parameters, for this label: a `hedgerow.losses.kinds.LossKind`."""


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """How plans of one method are written.

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
    """In place of the section of a method that is not installed: the plan of a model that is there all the same.

    Attributes:
        values: of the section; None without one.
        module, version: of the method, as the model's file says.
    """

    values: Mapping[str, Any] | None
    module: str
    version: str


@dataclass(frozen=True)
class AbsentLoss(NamedLoss):
    """In place of a named loss that is not installed.

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
        """Raise ValueError; what can be said without it is in `hedgerow.losses.registry.loss_kind`."""
        raise ValueError(f"the loss {self.name} is not installed")


def list_foreign_parts(plan: Any) -> list[dict[str, str]]:
    """What a plan asks for that is no part of Hedgerow: what it is, its name, its module and its version."""
    rules, named, loss = rules_by_method(), getattr(plan.loss, "name", ""), type(plan.loss)
    found = []
    for what, name, part, adder in (
        ("type of label", plan.label.type, plan.label.kind, LABEL_ADDERS.get(plan.label.type)),
        # A loss that was made in Python need not be the one of its name.
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
"""Of types of labels and of methods, with what carries them out in the rooms above."""
_LABELS: Registry[LabelKind] = Registry("type of label", LABEL_ADDERS)
_RULES: Registry[PlanRules] = Registry("method", METHOD_ADDERS)
_LOSSES: Registry[type[NamedLoss]] = Registry("loss")
_WAITING: list[Callable[[], object]] = []


def on_first_use(load: Callable[[], object]) -> None:
    """Call this before anything here is looked up: it adds what there is."""
    _WAITING.append(load)


def _load() -> None:
    while _WAITING:
        _WAITING.pop()()


def add_label(kind: LabelKind) -> None:
    """Let plans have labels of this type."""
    _LABELS[kind.type] = kind


def label_kinds() -> Mapping[str, LabelKind]:
    """Every type of label, by its name."""
    _load()
    return _LABELS


def add_named_loss(loss: type[NamedLoss]) -> None:
    """Let plans name this loss in [loss]."""
    _LOSSES[loss.name] = loss


def named_losses() -> Mapping[str, type[NamedLoss]]:
    """Every loss that [loss] may name, by its name."""
    _load()
    return _LOSSES


def add_rules(method: str, rules: PlanRules) -> None:
    """Let plans have this method."""
    # Two names with one section are one name.
    taken = {section_name(other): other for other in _RULES}
    _RULES[taken.get(section_name(method), method)] = rules


def rules_by_method() -> Registry[PlanRules]:
    """The rules of every method, by its name."""
    _load()
    return _RULES


def section_name(method: str) -> str:
    """The name of a method's section."""
    return method.replace("-", "_")


def sections() -> dict[str, type[Any]]:
    """Every section by its name."""
    return {section_name(name): rules.section for name, rules in rules_by_method().items() if rules.section is not None}


def own_section(section: type[Section], plan: Any) -> Section:
    """The section of a plan's method; ValueError when it is another's."""
    if not isinstance(plan.own, section):
        raise ValueError(f"a plan of {plan.model.algorithm} has no section {section.__name__}")
    return plan.own
