# SPDX-License-Identifier: Apache-2.0
"""How a plan is written as TOML 1.0."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hedgerow.plan.fields import escape_for_terminal
from hedgerow.plan.plan import DECLARED, Plan

OPEN_CLASSES = "# classes =   # FILL IN, the positive class last, such as [0, 1]"
_OPEN_BOUNDS = {name: f"# {name} =   # FILL IN, rather too wide than too narrow" for name in ("min", "max")}


def schema_file(kind: str) -> str:
    """Return the file name of the JSON Schema of such files, in their folder: see `hedgerow.app.schema`."""
    return f"{kind}.schema.json"


def schema_line(kind: str) -> str:
    """Return the first line of a draft, by which editors find its schema."""
    return f"#:schema ./{schema_file(kind)}"


def plan_toml(plan: Plan) -> str:
    """Write a plan as TOML, which `parse_plan` reads back to an equal plan; comments are not kept."""
    table = plan.to_dict()
    parts = [f"version = {table['version']}\nname = {toml_value(table['name'])}\n"]
    # The method's own section, if any, is written like the other tables.
    for name, values in table.items():
        if isinstance(values, Mapping):
            lists = {key: each for key, each in values.items() if isinstance(each, list) and each}
            nested = {key: each for key, each in lists.items() if all(isinstance(item, Mapping) for item in each)}
            parts.append(toml_section(name, {key: each for key, each in values.items() if key not in nested}))
            parts += [toml_section(f"[{name}.{key}]", each) for key, listed in nested.items() for each in listed]
    parts += [toml_section("[features]", feature) for feature in table["features"]]
    parts += [toml_section("[prepared]", release) for release in table.get("prepared", ())]
    return "\n".join(parts)


def toml_without_label(plan: Plan) -> str:
    """Write a plan as `plan_toml`, with gaps in place of the label's classes or bounds."""
    text = plan_toml(replace(plan, label=replace(plan.label, origin=DECLARED)))
    # [label] stands before all [[features]].
    for name, line in {"classes": OPEN_CLASSES, **_OPEN_BOUNDS}.items():
        if getattr(plan.label, name) not in (None, ()):
            text = text.replace(f"\n{name} = {toml_value(getattr(plan.label, name))}", f"\n{line}", 1)
    return text


def toml_section(name: str, values: Mapping[str, Any]) -> str:
    """Write a TOML table; an empty name gives no header."""
    head = f"[{name}]\n" if name else ""
    return head + "".join(f"{field} = {toml_value(value)}\n" for field, value in values.items())


def toml_value(value: Any) -> str:
    """Write a number, boolean or text, a list of these, or an inline table of texts, as TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    # For all other values TOML's notation equals JSON's, and TOML accepts any character by its number.
    return escape_for_terminal(json.dumps(value, ensure_ascii=False))


def toml_key(name: str) -> str:
    """Write a key, in quotation marks if needed."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)
