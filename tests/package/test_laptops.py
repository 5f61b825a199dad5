"""Estimators and commands on files work where Unix's own modules are missing, as on Windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import os, signal, socket, sys

for module in ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[module] = None
import shutil, subprocess, tempfile, threading
for owner, names in (
    (os, ["O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "geteuid", "getuid", "getgid", "fchmod", "fork",
          "sched_getaffinity", "statvfs", "register_at_fork", "link"]),
    (signal, ["SIGHUP", "SIGKILL", "pthread_kill", "SIGUSR1"]),
    (socket, ["AF_UNIX"]),
):
    for name in names:
        delattr(owner, name)

import json
import numpy as np
from hedgerow import DPGBDTClassifier
from hedgerow.cli.main import main

rows = np.random.default_rng(0).normal(size=(60, 2))
model = DPGBDTClassifier(bounds=(-4, 4), classes=[0, 1], n_records=60, n_trees=2).fit(rows, rows[:, 0] > 0)
found = {"fit": model.predict(rows).shape == (60,)}
for arguments in json.loads(sys.argv[1]):
    found[" ".join(arguments[:2])] = main(arguments)
print("\\n" + json.dumps(found))
"""
_PLAN = """
version = 1
name = "laptop"
privacy = {epsilon = 1, delta = 1e-6, n_records = 60}
model = {n_trees = 2}
features = [{name = "x", type = "numeric", min = 0, max = 9}]
label = {name = "y", type = "binary", classes = [0, 1]}
"""
COMMANDS = [
    ["plan", "init", "a.csv", "--label", "y", "--out", "draft.toml"],
    ["privacy", "plan.toml"],
    ["check", "plan.toml", "a.csv"],
    ["train", "plan.toml", "--site", "a.csv", "--out", "model.json"],
    ["predict", "model.json", "a.csv", "--out", "predicted.csv"],
    ["evaluate", "model.json", "a.csv"],
    ["report", "model.json"],
    ["export", "model.json", "--out", "exported.json"],
    ["schema", "policy"],
]


@pytest.mark.slow
def test_estimators_and_local_commands_need_no_unix(tmp_path: Path) -> None:
    """An analyst on Windows fits, trains, predicts and reports; nodes and coordinators are for Unix."""
    (tmp_path / "a.csv").write_text("x,y\n" + "1,0\n8,1\n" * 30, encoding="utf-8")
    (tmp_path / "plan.toml").write_text(_PLAN, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _CODE, json.dumps(COMMANDS)],
        cwd=tmp_path, env=os.environ, text=True, capture_output=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    assert found == {"fit": True, **{" ".join(command[:2]): 0 for command in COMMANDS}}, done.stderr
