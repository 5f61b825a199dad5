# SPDX-License-Identifier: Apache-2.0
"""A folder that works, to begin a study in: a plan, made-up tables of three sites that fit it, and a script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from hedgerow.app.schema import write_beside
from hedgerow.errors import UsageError
from hedgerow.local.simulation import simulate_records, split_evenly
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.plan.toml import schema_line

N_SITES, _SEED, _N_HELD_OUT = 3, 1, 1_000
PLAN_TEXT = f"""{schema_line("plan")}
# What all parties agree on: change it to what your sites hold, then write their tables' paths into study.py.
version = 1
name = "my study"

[privacy]
epsilon = 1            # the promise: how well anyone can tell whether a record was there
delta = 1e-6           # a small probability beside it
n_records = 6000       # over all sites, a public or declared number
noise = "distributed"  # the sites add it: nobody sees a sum without

[label]
name = "ill"
type = "binary"
classes = ["no", "yes"]

# Bounds and categories are public: from a code book, never from the rows.
[[features]]
name = "age"
type = "numeric"
min = 0
max = 110
integer = true

[[features]]
name = "pressure"
type = "numeric"
min = 60
max = 240

[[features]]
name = "ward"
type = "categorical"
categories = ["a", "b", "c"]

[federation]
min_sites = {N_SITES}
"""
SCRIPT_TEXT = f'''"""Three sites train one model together, rehearsed on this machine: python study.py"""

from pathlib import Path

import hedgerow

FOLDER = Path(__file__).parent
plan = hedgerow.parse_plan((FOLDER / "plan.toml").read_text(encoding="utf-8"))
# Made-up rows, as the plan describes them. Each real site keeps its own: see README.md.
sites = {{name: str(FOLDER / f"{{name}}.csv") for name in {[f"site-{number}" for number in range(1, N_SITES + 1)]!r}}}
result = hedgerow.Study(plan).run(hedgerow.Simulation(sites))
result.model.save(FOLDER / "model.json")
print(result.model.report.text())
'''
README_TEXT = """# My study

    hedgerow privacy plan.toml                  # what the plan costs, and how good a model to expect
    python study.py                             # rehearse it: model.json
    hedgerow evaluate model.json test.csv       # exact scores, of made-up rows
    hedgerow study demo --sites 3               # invitations, words, a run: what the parties will type

The rows of site-1.csv, site-2.csv, site-3.csv and test.csv are made up by the plan and nobody's. For real ones each
site keeps its table, and the coordinator types:

    hedgerow study new my-study --plan plan.toml --listen 0.0.0.0:7443 --address YOUR.HOST:7443
"""


def start_study(folder: Path) -> list[Path]:
    """Write a starter study into an empty or new folder, and return its files; raise UsageError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("exists", code="study-exists", path=folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"plan.toml": PLAN_TEXT, "study.py": SCRIPT_TEXT, "README.md": README_TEXT}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_beside(folder / "plan.toml", "plan")
    plan = parse_plan(PLAN_TEXT)
    tables = split_evenly(simulate_records(plan, plan.privacy.n_records, _SEED), N_SITES)
    tables["test"] = simulate_records(plan, _N_HELD_OUT, _SEED, part=1)
    for name, records in tables.items():
        columns = [*map(np.asarray, records.features), np.asarray(records.label)]
        arrow_csv.write_csv(_write_table(plan, columns), folder / f"{name}.csv")
    return sorted(folder.iterdir())


def _write_table(plan: Plan, columns: list[np.ndarray]) -> pa.Table:
    """Write codes as their words, and whole numbers without a point."""
    words = [feature.categories for feature in plan.features] + [plan.label.classes]
    whole = [feature.integer for feature in plan.features] + [False]
    arrays = [
        pa.array(np.array(known)[cells]) if known else pa.array(cells.astype(np.int64) if is_whole else cells.round(1))
        for cells, known, is_whole in zip(columns, words, whole, strict=True)
    ]
    return pa.table(arrays, names=[*plan.feature_names, plan.label.name])
