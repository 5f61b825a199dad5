"""docs/fields.md: every field of a plan, a policy and an estimator, out of their declarations and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from hedgerow import (
    DPGBDTClassifier,
    DPGBDTRegressor,
    DPGBDTSurvival,
    DPLinearClassifier,
    DPLinearRegressor,
)
from hedgerow.client.policy import Policy
from hedgerow.data.adapters import Adapter
from hedgerow.errors import PlanError
from hedgerow.plan.plan import Feature, Federation, Label, Model, Prepared, Privacy
from hedgerow.plan.registry import sections

HEAD = """\
# Fields

*Every field of a plan, of a site's policy and of the estimators. Reference; made from the declarations by
`python -m experiments field_reference > docs/fields.md`.* "auto" is decided from public numbers
([the rule](defaults.md)). "required" has no default."""
ESTIMATORS = (DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier, DPLinearRegressor)


def sentences(owner: type) -> dict[str, str]:
    """What a class's docstring says of each of its attributes or parameters, on one line."""
    text = inspect.cleandoc(owner.__doc__ or "")
    found: dict[str, str] = {}
    for part in re.findall(r"^.*:\n((?:[ ]{4}.*(?:\n|$))+)", text, re.MULTILINE):
        entries = re.split(r"\n(?=\S)", textwrap.dedent(part).strip())
        for names, _, said in (" ".join(entry.split()).partition(": ") for entry in entries):
            if not said.startswith("as in `DP"):
                found |= dict.fromkeys(re.split(r",\s*", names), said)
    return found


def _allowed(field: dataclasses.Field[Any]) -> str:
    """What a field's check says it wants."""
    try:
        field.metadata["check"](object(), "field")
    except PlanError as error:
        return str(error.remedy).removeprefix("Set field to ").rstrip(".")
    return "a table"


def _row(name: str, kind: str, default: str, said: str) -> str:
    return f"| `{name}` | {kind} | {default} | {said} |".replace("\n", " ")


def _default(value: Any) -> str:
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if dataclasses.is_dataclass(value):
        return "-"
    return "-" if value in (None, "", ()) else f"`{value!r}`".replace("'", '"')


def table_of_fields(owner: type) -> Iterable[str]:
    """A row for each field of a section."""
    said = sentences(owner)
    yield from ("| field | value | default | meaning |", "| --- | --- | --- | --- |")
    for field in dataclasses.fields(owner):
        yield _row(field.name, _allowed(field), _default(field.default), said[field.name].replace("|", r"\|"))


def table_of_parameters() -> Iterable[str]:
    """A row for each parameter of the estimators, with those that take it where not all do."""
    takers: dict[tuple[str, str, str, str], list[str]] = {}
    for owner in ESTIMATORS:
        # The estimators of numbers and of times leave to that of classes what is the same.
        said = sentences(DPGBDTClassifier)
        for each in (DPLinearClassifier,) * (owner is DPLinearRegressor) + owner.__mro__[::-1]:
            said |= sentences(each)
        for name, given in inspect.signature(owner).parameters.items():
            kind = f"`{given.annotation}`".replace(" | ", " or ")
            takers.setdefault((name, kind, _default(given.default), said[name]), []).append(owner.__name__)
    yield from ("| parameter | type | default | of | meaning |", "| --- | --- | --- | --- | --- |")
    for (name, kind, default, said_of_it), owners in takers.items():
        whose = "all" if len(owners) == len(ESTIMATORS) else ", ".join(owners)
        yield _row(name, kind, default, f"{whose} | {said_of_it}")


def render() -> str:
    """The whole page."""
    parts = [HEAD, "", "## Plan", "", "At the top: `version = 1`, and `name`, a line of text."]
    named = {"[privacy]": Privacy, "[model]": Model, "[federation]": Federation}
    named |= {"[[features]]": Feature, "[label]": Label}
    named |= {f"[{name}]": section for name, section in sections().items()}
    named |= {"[[prepared]]": Prepared}
    for title, owner in named.items():
        parts += ["", f"### `{title}`", "", *table_of_fields(owner)]
    parts += ["", "## Policy", "", *table_of_fields(Policy), "", "### `[data]`", "", *table_of_fields(Adapter)]
    parts += ["", "## Estimators", "", *table_of_parameters()]
    return "\n".join(parts)


def main(argv: list[str]) -> int:
    """Every field of a plan, a policy and an estimator, as docs/fields.md has them."""
    print(render())
    return 0
