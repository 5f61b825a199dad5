"""`hedgerow node --shards`: each table that the owner gives is read in parts, for whatever the run is for."""

from __future__ import annotations

import itertools
import os
import stat
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from hedgerow.app import node
from hedgerow.app.actors import start_actors
from hedgerow.app.environments import make_keys
from hedgerow.app.options import NodeOptions
from hedgerow.client.setup import build_answers
from hedgerow.client.shards import ShardedNode
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, TrainingTask, ensemble_bytes
from hedgerow.plan.plan import Feature
from hedgerow.survey.requests import OpenTable
from tests.builders import LABELS, bare_plan, numbers, train_model
from tests.client.test_shards import HereWorker
from tests.wards import plan_text


def test_rows_to_train_on_held_out_and_raw_cells_are_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mapped files as well: the parts of one table do not take the place of the other's."""
    monkeypatch.setattr(node, "warm_up", lambda *_: None)
    monkeypatch.setattr(node, "start_actors", lambda _: partial(HereWorker, set(), itertools.count()))
    make_keys(tmp_path, {name: tmp_path for name in ("north", "south", "east")})
    (tmp_path / "plan.toml").write_text(plan_text(1, name="wards", categories=(), privacy={"n_records": 60}))
    said = 'version = 1\ndata_set = "wards"\nmax_epsilon = 9.0\ndelta = 1e-4\nsurveys = true\nnoise = ["server"]\n'
    (tmp_path / "policy.toml").write_text(said)
    for name, n in (("rows", 40), ("held-out", 30)):
        rows = [f"{i % 9},{i % 2},{i}" for i in range(n)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ill,stay", *rows, ""]))
    file = {name: str(tmp_path / name) for name in ("rows.csv", "held-out.csv", "plan.toml", "policy.toml")}
    options = NodeOptions(
        identity=str(tmp_path / "north.private.json"), roster=str(tmp_path / "roster.toml"), policy=file["policy.toml"],
        data=file["rows.csv"], held_out=file["held-out.csv"], plan=file["plan.toml"], shards=3, external_memory=True,
        quiet=True,
    )  # fmt: skip
    plan, found = node.read_plan(file["plan.toml"]), []
    columns = [Feature(name=name, type="") for name in ("age", "ill")]
    asked = OpenTable.of(columns, "ill", {"epsilon": 1.0, "delta": 1e-5})
    model = train_model(bare_plan(LABELS["binary"], numbers(1)))
    with node.prepare_node(options) as ready:
        setup = ready.session._setup
        evaluation = EvaluationTask(plan.with_structure_seed(1), ensemble_bytes(model.ensemble), 1.0, 1e-6, 4)
        for task in (TrainingTask(plan.with_structure_seed(1)), evaluation, SurveyTask(asked)):
            answers, _ = build_answers(task, setup)
            assert isinstance(answers, ShardedNode)
            found.append(answers._shards.n_records)
    kept = {path.name.rpartition("-")[0] for path in (tmp_path / "north-state").iterdir() if path.is_dir()}
    assert kept == {f"{role}-{number}-of-3" for role in ("rows", "held-out") for number in (1, 2, 3)}
    assert found == [40, 30, 40]


RAY = """\
import os
SEEN = dict(os.environ)
def is_initialized(): return False
def init(**how): SEEN.update(how)
def remote(**_): return lambda kind: kind
"""


@pytest.mark.parametrize("address", ["", "10.0.0.1:6379"])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_ray_of_the_nodes_own_has_a_token_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, system: str
) -> None:
    """Older Rays run the code of whoever reaches them: one's own listens here alone. Its mode is read when imported."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    (tmp_path / "ray" / "exceptions.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    tokens = []
    for _ in range(2):
        for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
            monkeypatch.delitem(sys.modules, name)
        given = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "known"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        start_actors(())
        seen = sys.modules["ray"].SEEN
        assert seen["address"] == (address or "local") and os.environ["RAY_ADDRESS"] == address
        if not address:
            # Ray opens the folder that it is given to everybody.
            assert seen["_node_ip_address"] == "127.0.0.1"
            within = Path(seen["_temp_dir"]).parent
            # macOS's folder of a user is so long that Ray could make no socket in it.
            assert within.parent == (tmp_path if system == "linux" else Path("/tmp"))
            assert stat.S_IMODE(within.stat().st_mode) == 0o700 and within.stat().st_uid == os.geteuid()
        else:
            assert "_node_ip_address" not in seen
        assert seen["RAY_AUTH_MODE"] == ("disabled" if address else "token")
        tokens.append(seen["RAY_AUTH_TOKEN"])
        monkeypatch.delitem(sys.modules, "ray")
        monkeypatch.delitem(sys.modules, "ray.exceptions")
    assert tokens == ["known", "known"] if address else len({*tokens, "known"}) == 3
