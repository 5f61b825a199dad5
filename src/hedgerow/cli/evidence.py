# SPDX-License-Identifier: Apache-2.0
"""``hedgerow evidence``: what those who have to sign for a model ask for, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hedgerow.app.inputs import output_folder
from hedgerow.app.output import note, print_json, today
from hedgerow.cli.options import add_command, add_shared
from hedgerow.errors import UsageError


def add_commands(commands: Any) -> None:
    """Add `evidence`."""
    add = add_command(commands, "evidence", run, "write a model's evidence for its reviewers")
    add("model", metavar="MODEL")
    add("--out", required=True, metavar="DIR", help="folder for the page, its JSON, recount.py and registry.yaml")
    add("--book", metavar="BOOK", help="a site's budget book, or its node's folder: earlier runs over the same rows")
    add("--attack", metavar="FILE", help="what `hedgerow attack --json` printed of this model")
    add_shared(add, "--evaluation")
    add("--published", action="append", default=[], metavar="FILE", help="another file that was published; repeat")
    add_shared(add, "--json")


def run(arguments: argparse.Namespace) -> None:
    """Write evidence.html, evidence.json, recount.py and registry.yaml into a folder."""
    from hedgerow.app.evidence import gather_evidence, write_evidence
    from hedgerow.client.budget import find_book
    from hedgerow.models.model import Model

    file = Path(arguments.model)
    model = Model.load(file, exact=True)
    book = None if arguments.book is None else find_book(Path(arguments.book))
    if book is not None and not book.is_file():
        wanted = "the book that `hedgerow node` was given with --budget, or its folder, --state"
        raise UsageError("not-found", code="budget-not-found", path=arguments.book, wanted=wanted)
    attack, evaluation = (None if each is None else Path(each) for each in (arguments.attack, arguments.evaluation))
    published = [Path(each) for each in arguments.published]
    content = gather_evidence(
        file, model, today(), book=book, attack=attack, evaluation=evaluation, published=published
    )
    written = write_evidence(output_folder(arguments.out), model, content)
    if arguments.json:
        print_json({"model": arguments.model, "files": {name: str(path) for name, path in written.items()}})
        return
    note(f"Wrote {', '.join(map(str, written.values()))}.")
