# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of plans, policies, rosters and adapters, for editors, from the declared fields.

A schema states the values of each field, not which fields fit together: `hedgerow privacy`, `node` and `check` check
the whole file.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.methods.registry import METHODS
from hedgerow.models.model import write_atomically
from hedgerow.plan.fields import ISO_DATE, allowed_by, read_sentences, text
from hedgerow.plan.omop import Omop
from hedgerow.plan.plan import PLAN_VERSION, Feature, FederationSection, Label, ModelSection, Prepared, Privacy
from hedgerow.plan.registry import named_losses, sections
from hedgerow.plan.toml import schema_file
from hedgerow.protocol.queries import Query

Schema = dict[str, Any]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ARE_NAMED: Schema = {"type": "object", "additionalProperties": False}


def build_plan_schema() -> Schema:
    """Build the JSON Schema of a plan's file."""
    feature = describe_section(Feature)
    for bound in ("min", "max"):
        # A date's bound is also a text, which is turned into days before the field's check.
        own = feature["properties"][bound]
        feature["properties"][bound] = {"type": ["number", "string"], "pattern": ISO_DATE} | {
            name: own[name] for name in ("minimum", "maximum", "description")
        }
    own = {"privacy": Privacy, "label": Label, "model": ModelSection, "federation": FederationSection, **sections()}
    losses = [describe_section(section) for section in named_losses().values()]
    for name, loss in zip(named_losses(), losses, strict=True):
        loss["properties"] = {"name": {"const": name}, **loss["properties"]}
        loss["required"] = ["name", *loss["required"]]
    properties = {
        "version": {"const": PLAN_VERSION},
        "name": allowed_by(text),
        **{name: describe_section(section) for name, section in own.items()},
        "loss": {"anyOf": losses},
        "features": {"type": "array", "minItems": 1, "items": feature},
        "prepared": {"type": "array", "items": describe_section(Prepared)},
        "omop": describe_section(Omop),
    }
    return _ARE_NAMED | {"properties": properties, "required": ["version", "privacy", "label", "features"]}


def build_policy_schema() -> Schema:
    """Build the JSON Schema of a site's policy."""
    from hedgerow.client.policy import Policy

    return describe_section(Policy)


def build_adapter_schema() -> Schema:
    """Build the JSON Schema of a file on how a site writes its table; a policy is such a file too."""
    from hedgerow.data.adapters import Adapter

    return {"type": "object", "properties": {"data": describe_section(Adapter)}, "required": ["data"]}


def build_roster_schema() -> Schema:
    """Build the JSON Schema of a roster as `hedgerow study roster` writes it."""
    from hedgerow.codec import MAX_ROWS
    from hedgerow.transport.identities import FORMAT_VERSION, PARTY_FIELDS, ROWS_VERSION, Role

    base64 = {"type": "string", "pattern": "^[A-Za-z0-9+/=]+$"}
    party = {name: base64 for name in sorted(PARTY_FIELDS)} | {"name": allowed_by(text)}
    required = sorted(PARTY_FIELDS)

    def listed(role: Role, **more: Any) -> Schema:
        return _ARE_NAMED | {"properties": {**party, "role": {"const": role.value}, **more}, "required": required}

    site = listed(Role.SITE, max_rows={"type": "integer", "minimum": 1, "maximum": MAX_ROWS})
    properties = {
        "version": {"enum": [FORMAT_VERSION, ROWS_VERSION]},
        "epoch": {"type": "integer", "minimum": 1},
        "coordinator": listed(Role.COORDINATOR),
        "sites": {"type": "array", "minItems": 1, "items": site},
        "monitors": {"type": "array", "items": listed(Role.MONITOR)},
    }
    return _ARE_NAMED | {"properties": properties, "required": ["version", "epoch", "coordinator", "sites"]}


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "plan": build_plan_schema,
    "policy": build_policy_schema,
    "roster": build_roster_schema,
    "adapter": build_adapter_schema,
}


def build_schema(kind: str) -> Schema:
    """Build the JSON Schema of a kind of file, one of `SCHEMAS`."""
    return {"$schema": _DIALECT, "title": f"{kind} of Hedgerow", **SCHEMAS[kind]()}


def write_beside(draft: Path, kind: str) -> None:
    """Write the schema named in a draft's first line, unless the file exists."""
    path = draft.with_name(schema_file(kind))
    if not path.exists():
        write_atomically(path, f"{json.dumps(build_schema(kind), indent=1)}\n".encode())


def describe_section(section: type) -> Schema:
    """Describe a dataclass of checked fields as JSON Schema; a field may be such a dataclass itself."""
    said, properties, required = read_sentences(section), {}, []
    for field in dataclasses.fields(section):
        if dataclasses.is_dataclass(field.default):
            properties[field.name] = describe_section(type(field.default))
        else:
            properties[field.name] = {**allowed_by(field.metadata["check"]), "description": said.get(field.name, "")}
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        elif isinstance(field.default, str | int | float) and field.default != "":
            properties[field.name]["default"] = field.default
    return _ARE_NAMED | {"properties": properties, "required": required}


def describe_kinds() -> dict[str, str]:
    """Describe each kind of sum by its docstring's first line, without the vector's shape."""
    for method in METHODS.values():
        # This loads the method's own kinds.
        method.parts()
    found: list[type[Query]] = [Query]
    for each in found:
        found += each.__subclasses__()
    first = {each.__name__: inspect.cleandoc(each.__doc__ or "").partition("\n\n")[0] for each in found}
    return {name: re.split(r"[:,] int64", " ".join(said.split()))[0].rstrip(".") for name, said in first.items()}
