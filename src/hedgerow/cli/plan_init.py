"""``hedgerow plan init``: draft a plan."""

from __future__ import annotations

import argparse
import re

from hedgerow.cli.inputs import check_can_write
from hedgerow.cli.output import note, typed
from hedgerow.data.drafts import draft_plan
from hedgerow.errors import UsageError


def run(arguments: argparse.Namespace) -> None:
    """Print the draft, or write it to a file that does not exist yet."""
    out = None if arguments.out is None else check_can_write(arguments.out)
    if out is not None and out.exists():
        raise UsageError(
            f"{out} exists already.",
            cause="Somebody may have filled it in by hand.",
            remedy="Choose another name, or remove it first.",
            code="plan-exists",
        )
    text = draft_plan(
        arguments.data,
        arguments.label,
        bounds_are_public=arguments.bounds_are_public,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        n_records=arguments.n_records,
    )
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    n_open, n_guessed = (len(re.findall(rf"^# \w+ = .*# {mark}", text, re.M)) for mark in ("FILL IN", "CONFIRM"))
    told = [f"fill in the {n_open} lines marked FILL IN"] if n_open else []
    told += [f"confirm the {n_guessed} lines marked CONFIRM, which were guessed from the cells"] if n_guessed else []
    rest = f" In it, {' and '.join(told)}; then" if told else " Now"
    note(f"Wrote {out}.{rest} see what it costs: {typed(f'hedgerow privacy {out}')}")
