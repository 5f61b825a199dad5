"""docs/fields.md: every field of a plan, a policy, carried party's file and an estimator, by their declarations."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from typing import Any

import hedgerow
from hedgerow import DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier, DPLinearRegressor
from hedgerow.app.options import CoordinatorOptions, NodeOptions
from hedgerow.app.schema import describe_kinds
from hedgerow.client.policy import Policy
from hedgerow.data.adapters import Adapter
from hedgerow.errors import PlanError
from hedgerow.plan.fields import list_fields, read_sentences
from hedgerow.plan.omop import Omop, OmopColumn, OmopOutcome
from hedgerow.plan.plan import Feature, FederationSection, Label, ModelSection, Privacy
from hedgerow.plan.registry import named_losses, sections
from hedgerow.protocol.queries import Query

HEAD = """\
# Fields

*Every field of a plan, of a site's policy, of the files of carried parties and of the estimators. Reference; made from
the declarations by `python -m experiments field_reference > docs/fields.md`.* "auto" is decided from public numbers
([the rule](defaults.md)). In parentheses stands what a field may be, then its default. *From* and *to*
take the ends in, *between* does not.

Editors that know TOML schemas (taplo, Even Better TOML) underline what a field may not be: the first line of a draft
names its schema, and `--out` writes that beside it. Of another plan, a policy, a roster or an adapter it is
`hedgerow schema policy --out policy.schema.json`, and `#:schema ./policy.schema.json` as the first line of the file."""
ESTIMATORS = (DPGBDTClassifier, DPGBDTRegressor, DPGBDTSurvival, DPLinearClassifier, DPLinearRegressor)
_NAMES = tuple(one.__name__ for one in ESTIMATORS)
WHOSE = {_NAMES: "", _NAMES[:3]: "boosted", _NAMES[3:]: "linear"}
"""How the page calls the owners of a parameter."""

BASES = {
    "Choice", "ColumnCounts", "EvaluationQuery", "OneCount", "PartitionSums", "PureQuery", "RecordCounts",
    "SampledQuery", "SiteQuery", "SurveyQuery",
}  # fmt: skip
"""Kinds of queries that are never asked themselves."""
PREPARED = """\
### `[[prepared]]`

What was released before the training, and with which noise. `hedgerow survey` writes it, so
that the report counts it; leave it as it is."""
SITE = """\
## A site's file

`site.toml`, for a site whose messages Flower, NVFlare or files carry. At the top: `version = 1`. Paths are relative to
the file. `hedgerow node` has the same fields as options, and more."""
COORDINATOR = """\
## A coordinator's file

`coordinator.toml`, for a run over Flower, NVFlare or files. At the top: `version = 1`. It trains by `plan` and writes
`out`, or evaluates `model` for `epsilon`. Paths are relative to the file."""
KINDS = """\
### Kinds of sums

What `query_kinds` may list. `hedgerow privacy` prints those of a training by a plan. A record adds to each sum what its
bound allows and no more. Noise is added to all of them but `SplitSelection`, of which a choice is drawn."""


def _allowed(field: dataclasses.Field[Any]) -> str:
    """What a field's check says it wants."""
    try:
        field.metadata["check"](object(), "field")
    except PlanError as error:
        said = error.what.partition("; expected ")[2].rstrip(".")
        said = re.sub(r"^(an?|one of) ", "", said).replace("number strictly between", "number between")
        return said.replace("non-empty line of text", "text").replace("list of distinct values", "list")
    return "table"


def _line(names: Iterable[str], facts: Iterable[str], said: str) -> str:
    named = ", ".join(f"`{name}`" for name in names)
    known = "; ".join(filter(None, facts))
    return " ".join(f"- {named}{f' ({known})' * bool(known)}: {said}".split())


def _default(value: Any) -> str:
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return "**required**"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if dataclasses.is_dataclass(value):
        return ""
    return "" if value in (None, "", ()) else f"`{value!r}`".replace("'", '"')


def list_lines(owner: type) -> Iterator[str]:
    """A line for each field of a section; those of one meaning share a line."""
    said = read_sentences(owner)
    names: dict[tuple[str, str, str], list[str]] = {}
    for field in list_fields(owner):
        facts = (_allowed(field), _default(field.default), said[field.name])
        names.setdefault(facts, []).append(field.name)
    for (allowed, default, meaning), fields in names.items():
        yield _line(fields, (allowed, default), meaning)


def list_parameters() -> Iterator[str]:
    """A line for each parameter of the estimators, with those that take it where not all do."""
    takers: dict[tuple[str, str, str, str], list[str]] = {}
    shared: dict[tuple[str, str, str, str], list[str]] = {}
    for owner in ESTIMATORS:
        # The estimators of numbers and of times leave to that of classes what is the same.
        said = read_sentences(DPGBDTClassifier)
        for each in (DPLinearClassifier,) * (owner is DPLinearRegressor) + (owner,):
            said |= read_sentences(each)
        for name, given in inspect.signature(owner).parameters.items():
            kind = f"`{given.annotation}`".replace(" | ", " or ")
            takers.setdefault((name, kind, _default(given.default), said[name]), []).append(owner.__name__)
    for (name, kind, default, said_of_it), owners in takers.items():
        whose = WHOSE.get(tuple(owners), ", ".join(owners))
        is_a_plans = said_of_it.startswith("as in a plan")
        facts = ("", "", whose, said_of_it) if is_a_plans else (kind, default, whose, said_of_it)
        shared.setdefault(facts, []).append(name)
    for (kind, default, whose, meaning), names in shared.items():
        yield _line(names, (kind, default, whose), meaning)


def kinds() -> Iterator[type[Query]]:
    """Every kind of query of the package that is asked."""
    for module in pkgutil.walk_packages(hedgerow.__path__, "hedgerow."):
        if module.name.split(".")[1] in ("trees", "methods", "evaluation", "survey"):
            importlib.import_module(module.name)
    found: list[type[Query]] = [Query]
    for each in found:
        found += [one for one in each.__subclasses__() if one not in found]
    for each in sorted(found[1:], key=lambda one: one.__name__):
        is_ours = each.__module__.startswith("hedgerow.")
        if is_ours and each.__name__ not in BASES and not each.__name__.startswith("_"):
            yield each


def list_kinds() -> Iterator[str]:
    """A line for each: what it is by the first line of its docstring, without the shape of the vector."""
    found: dict[str, list[str]] = {"trainings": [], "evaluations": [], "surveys": []}
    said = describe_kinds()
    for each in kinds():
        room = each.__module__.split(".")[1]
        task = {"evaluation": "evaluations", "survey": "surveys"}.get(room, "trainings")
        found[task].append(_line([each.__name__], (), said[each.__name__]))
    for task, lines in found.items():
        yield from ("", f"In {task}:", "", *lines)


def render() -> str:
    """The whole page."""
    parts = [HEAD, "", "## Plan", "", "At the top: `version = 1`, and `name`, a line of text."]
    named = {"[privacy]": Privacy, "[model]": ModelSection, "[federation]": FederationSection}
    named |= {"[[features]]": Feature, "[label]": Label}
    named |= {f"[{name}]": section for name, section in sections().items()}
    named |= {f'[loss], name = "{name}"': loss for name, loss in named_losses().items()}
    named |= {"[omop]": Omop, "[omop.outcome]": OmopOutcome, "[[omop.columns]]": OmopColumn}
    for title, owner in named.items():
        parts += ["", f"### `{title}`", "", *list_lines(owner)]
    parts += ["", PREPARED, "", "## Policy", "", *list_lines(Policy)]
    parts += ["", "### `[data]`", "", *list_lines(Adapter)]
    parts += ["", KINDS, *list_kinds()]
    parts += ["", SITE, "", *list_lines(NodeOptions)]
    parts += ["", COORDINATOR, "", *list_lines(CoordinatorOptions)]
    parts += ["", "## Estimators", "", *list_parameters()]
    return "\n".join(parts)


def main(argv: list[str]) -> int:
    """Every field of a plan, a policy, a carried party's file and an estimator, as docs/fields.md has them."""
    print(render())
    return 0
