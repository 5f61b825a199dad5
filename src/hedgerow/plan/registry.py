"""What a plan asks of losses and methods, of which it knows no more than this: types of labels, sections, checks.

Both stand above plans, so they are added from there (`hedgerow.losses.registry`, `hedgerow.methods.registry`). That
happens when a plan is first read: `hedgerow/__init__.py` says what to load then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Section = TypeVar("Section")
Member = TypeVar("Member")


class Registry(dict[str, Member]):
    """What there is of a kind, by name; a name that is taken is refused (UsageError, code "name-taken").

    What is added would else run under another one's name: in plans that were agreed on, and in reports.

    Args: kind: what a member is, for the error.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __setitem__(self, name: str, member: Member) -> None:
        if name in self:
            # Not above: `import hedgerow` makes the two empty lists, and loads nothing else.
            from hedgerow.errors import UsageError

            raise UsageError("name-taken", kind=self._kind, name=name)
        super().__setitem__(name, member)


@dataclass(frozen=True)
class LabelKind:
    """A type of label.

    Attributes:
        type: as `label.type` has it.
        is_grouped: whether all that it releases are noisy sums of which a middle value can be taken entry by entry.
        check: raises PlanError for a label of this type that contradicts itself.
        hint: what a draft says of it, as in '"binary" with two classes'.
    """

    type: str
    check: Callable[[Any], None]
    hint: str


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """How plans of one method are written.

    Attributes:
        section: the dataclass of its own section, which is called as the method, with "_" for "-"; None without one.
        model_fields: the fields of [model] that it reads, None for all; others would be ignored, so they are refused.
        labels: types of labels that it is for; None for all.
        is_pure: whether its releases are of pure differential privacy.
        is_constrained: whether its scores go with a feature as `Feature.monotone` says, and which features meet as
            `Model.interaction_constraints` do; plans of others with either are refused.
        counts_prepared: whether it calibrates its noise to what is left beside releases made before (`Plan.prepared`).
        check: raises PlanError for a plan that contradicts itself; its own section is `plan.own`.
    """

    section: type[Any] | None = None
    model_fields: frozenset[str] | None = None
    labels: tuple[str, ...] | None = None
    is_pure: bool = False
    is_constrained: bool = False
    counts_prepared: bool = False
    is_grouped: bool = False
    check: Callable[[Any], None] = lambda plan: None


_LABELS: Registry[LabelKind] = Registry("type of label")
_RULES: Registry[PlanRules] = Registry("method")
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


def add_rules(method: str, rules: PlanRules) -> None:
    """Let plans have this method."""
    # Two names with one section are one name.
    taken = {section_of(other): other for other in _RULES}
    _RULES[taken.get(section_of(method), method)] = rules


def rules_by_method() -> dict[str, PlanRules]:
    """The rules of every method, by its name."""
    _load()
    return _RULES


def section_of(method: str) -> str:
    """The name of a method's section."""
    return method.replace("-", "_")


def sections() -> dict[str, type[Any]]:
    """Every section by its name."""
    return {section_of(name): rules.section for name, rules in rules_by_method().items() if rules.section is not None}


def own_section(section: type[Section], plan: Any) -> Section:
    """The section of a plan's method; ValueError when it is another's."""
    if not isinstance(plan.own, section):
        raise ValueError(f"a plan of {plan.model.algorithm} has no section {section.__name__}")
    return plan.own
