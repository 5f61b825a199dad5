"""``hedgerow plan``: `init` drafts a plan from a table's header, `preset` prints a named method or a plan with it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hedgerow.cli.inputs import adapted_table, new_file, read_plan
from hedgerow.cli.output import note, print_facts, typed, wrapped
from hedgerow.cli.survey import private_draft
from hedgerow.data.codebook import read_codebook
from hedgerow.data.drafts import draft_plan, plan_toml, toml_section
from hedgerow.errors import UsageError
from hedgerow.training.presets import PRESETS, Preset, apply_preset, preset_named


def init(arguments: argparse.Namespace) -> None:
    """Print the draft, or write it to a file that does not exist yet; with --federated, the plan of a survey."""
    if arguments.federated:
        from hedgerow.cli import plan_survey

        plan_survey.run(arguments)
        return
    if arguments.label is None:
        raise UsageError("usage-survey-missing", missing="--label")
    out = None if arguments.out is None else new_file(arguments.out)
    if arguments.private:
        _write(private_draft(arguments), out)
        return
    text = draft_plan(
        adapted_table(arguments.data, arguments.adapter),
        arguments.label,
        bounds_are_public=arguments.bounds_are_public,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        n_records=arguments.n_records,
        codebook=None if arguments.codebook is None else read_codebook(arguments.codebook),
    )
    _write(text, out)


def _write(text: str, out: Path | None) -> None:
    """Print a draft, or write it and say what is left to do."""
    if out is None:
        print(text, end="")
        return
    out.write_text(text, encoding="utf-8")
    n_open, n_guessed = (len(re.findall(rf"^# \w+ = .*# {mark}", text, re.M)) for mark in ("FILL IN", "CONFIRM"))
    tasks = [f"fill in the {n_open} lines marked FILL IN"] if n_open else []
    tasks += [f"confirm the {n_guessed} lines marked CONFIRM, which were guessed"] if n_guessed else []
    rest = f" In it, {' and '.join(tasks)}; then" if tasks else " Now"
    note(f"Wrote {out}.{rest} see what it costs: {typed(f'hedgerow privacy {out}')}")


def preset(arguments: argparse.Namespace) -> None:
    """List the presets, print one, or write a plan with it."""
    if arguments.list:
        print_facts([(name, f"{preset.title}. {preset.source}") for name, preset in PRESETS.items()])
        return
    if arguments.name is None:
        raise UsageError("usage-no-preset")
    preset = preset_named(arguments.name)
    if arguments.plan is None:
        if arguments.out is not None:
            raise UsageError("usage-out-without-plan")
        print(_sections(preset), end="")
        return
    text = _header(preset) + plan_toml(apply_preset(preset, read_plan(arguments.plan)))
    if arguments.out is None:
        print(text, end="")
        return
    out = new_file(arguments.out)
    out.write_text(text, encoding="utf-8")
    note(f"Wrote {out}. Now see what it costs: {typed(f'hedgerow privacy {out}')}")


def _header(preset: Preset) -> str:
    source = wrapped(preset.source, hanging=0, columns=100)
    return "".join(f"# {line.strip()}\n" for line in (f"{preset.title}.", *source.splitlines()))


def _sections(preset: Preset) -> str:
    model: Mapping[str, Any] = preset.model
    lines = [_header(preset), toml_section("model", model)]
    if preset.trees_per_feature:
        kept = {name: value for name, value in model.items() if name != "n_trees"}
        count = f"# n_trees =   # FILL IN: {preset.trees_per_feature} times the number of features"
        lines = [_header(preset), toml_section("model", kept), count + "\n"]
    if preset.section:
        lines += ["\n", toml_section(preset.section_name, preset.section)]
    privacy: dict[str, Any] = {"accountant": preset.accountant, **preset.privacy}
    if not preset.private:
        privacy = {"epsilon": float("inf")}
    return "".join([*lines, "\n# In the plan's own [privacy]:\n", toml_section("", privacy, commented=True)])
