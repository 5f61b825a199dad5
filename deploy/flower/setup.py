# SPDX-License-Identifier: Apache-2.0
"""What Flower needs beside what deploy/compose/setup.py makes: TLS, SuperNode keys, and each party's file of paths."""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

from keys import make_certificates, make_node_key

VOLUMES = Path("/volumes")
DAYS = 3650
CONFIG = """\
[superlink]
default = "federation"
[superlink.federation]
address = "superlink:9400"
root-certificates = "/data/ca.pem"
"""
SITE = """\
version = 1
data = "table.csv"
identity = "{site}.private.json"
roster = "roster.toml"
policy = "policy.toml"
plan = "plan.toml"
state = "state"
"""
COORDINATOR = """\
version = 1
plan = "plan.toml"
roster = "roster.toml"
identity = "coordinator.private.json"
out = "/out/model.json"
journal = "/data/run.journal"
repeat = 120
"""


def main() -> None:
    """Fill the volumes, unless they are filled."""
    coordinator, user = VOLUMES / "coordinator", VOLUMES / "user"
    if not (coordinator / "ca.pem").exists():
        make_certificates(coordinator, "superlink", DAYS)
        (user / "flwr").mkdir()
        (user / "flwr" / "config.toml").write_text(CONFIG, encoding="utf-8")
        seed = os.environ.get("HEDGEROW_SEED", "")
        text = COORDINATOR + (f"seed = {seed}\n" if seed else "")
        (coordinator / "coordinator.toml").write_text(text, encoding="utf-8")
        for site in sorted(folder.name for folder in VOLUMES.glob("site-*")):
            folder = VOLUMES / site
            make_node_key(folder, "supernode.key")
            shutil.move(folder / "supernode.key.pub", user / f"{site}.pub")
            (folder / "site.toml").write_text(SITE.format(site=site), encoding="utf-8")
            shutil.copy(coordinator / "ca.pem", folder)
        shutil.copy(coordinator / "ca.pem", user)
    os.chown(user / "flwr", 10001, 10001)
    os.chown(user / "flwr" / "config.toml", 10001, 10001)
    runpy.run_path("/deploy/compose/setup.py", run_name="__main__")


main()
