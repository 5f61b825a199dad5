"""Synthetic rows by a model of marginals (the package dpmm): what `experiments.rivals` starts with another interpreter.

dpmm wants older releases of numpy, pandas and scikit-learn than everything else here, so it has an environment of its
own, and this file imports nothing of ours. `python _marginals.py FOLDER` reads `task.json` and `rows.npz` there, and
writes `synthetic.npz`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from dpmm.pipelines import AIMPipeline, MSTPipeline

BINNING_SHARE = 0.1
"""Of epsilon, for the bins of numbers: dpmm's own default gives them 0.1 beside an epsilon of 1."""


def synthesize(folder: Path) -> None:
    """Fit a model to the rows, and draw as many from it; every bound and category is as declared."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    rows = np.load(folder / "rows.npz")
    frame = pd.DataFrame(
        {
            name: pd.Series(rows[name].astype(int)).astype("category") if "categories" in column else rows[name]
            for name, column in task["columns"].items()
        }
    )
    pipeline = {"mst": MSTPipeline, "aim": AIMPipeline}[task["model"]](
        epsilon=(1 - BINNING_SHARE) * task["epsilon"], delta=task["delta"],
        proc_epsilon=BINNING_SHARE * task["epsilon"], n_jobs=1,
    )  # fmt: skip
    pipeline.fit(frame, task["columns"], random_state=task["seed"])
    made = pipeline.generate(n_records=len(frame), random_state=task["seed"])
    np.savez(folder / "synthetic.npz", **{name: made[name].astype(float).to_numpy() for name in frame})


if __name__ == "__main__":
    synthesize(Path(sys.argv[1]))
