"""How the options of a command become what its function takes."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def read_options(kind: type[T], arguments: argparse.Namespace, **given: Any) -> T:
    """A record of options: `given`, `quiet` by --json, and every other field by the option of its name."""
    named = {field.name: getattr(arguments, field.name) for field in fields(kind) if hasattr(arguments, field.name)}  # type: ignore[arg-type]
    return kind(**named | {"quiet": arguments.json} | given)
