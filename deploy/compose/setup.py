# SPDX-License-Identifier: Apache-2.0
"""What happens at each hospital and at the coordinator before a first run, here for all of them at once.

Each folder under /volumes becomes one party's: its keys, the roster, the plan, and at a site its own rows and policy.
In a real federation every party does its part on its own machine, as docs/deploy.md says, and nobody sees the others'
files. Started again, this keeps what is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hedgerow.data.datasets import ALL_SITES, rand_hie_plan_text, write_rand_hie

VOLUMES, OUT = Path("/volumes"), Path("/out")
USER = 10001
POLICY = """\
# What the owner of these rows allows, whatever a coordinator proposes; docs/operate.md explains each line.
version = 1
data_set = "person-years of {site}"
max_epsilon = 3.0
delta = 1e-5
min_sites = 3
labels = ["visited"]
noise = ["server"]   # the coordinator adds the noise: all sites trust it with exact sums, and to add it
"""


def main() -> None:
    """Fill the volumes."""
    sites = sorted(folder.name for folder in VOLUMES.glob("site-*"))
    coordinator = VOLUMES / "coordinator"
    if not (coordinator / "roster.toml").exists():
        work = Path("/tmp/setup")
        work.mkdir()
        make_files(work, sites)
    elif new := [site for site in sites if not (VOLUMES / site / "roster.toml").exists()]:
        said = f"setup: these volumes have a roster without {', '.join(new)}: `down --volumes` forgets it."
        # Some versions of podman-compose have started these sites already: they wait for `ready`, or end by this.
        for site in new:
            (VOLUMES / site / "ready.refused").write_text(f"{said}\n", encoding="utf-8")
            (VOLUMES / site / "ready.refused").chmod(0o644)
            os.chown(VOLUMES / site, USER, USER)
        sys.exit(said)
    # The coordinator's user in the container is nobody on the host, whose own user keeps the folder.
    os.chown(OUT, -1, USER)
    OUT.chmod(0o775)
    for folder in VOLUMES.iterdir():
        folder.chmod(0o700)
        for path in (folder, *folder.iterdir()):
            os.chown(path, USER, USER)
        # Some versions of podman-compose start the parties at once: they wait for this file, the last one.
        (folder / "ready").touch()
    print(f"setup: {len(sites)} sites and the coordinator have what they need.")


def make_files(work: Path, sites: list[str]) -> None:
    """Keys, roster, plan, rows and policies; the roster comes last, for it says that all is there."""
    numbers = [int(site.removeprefix("site-")) for site in sites]
    if not 3 <= len(sites) or not set(numbers) <= set(ALL_SITES):
        sys.exit(f"setup: the study has the sites 1 to 6, and a run needs three of them; the volumes are {sites}.")
    hedgerow("study", "keys", "coordinator", "--coordinator", "--folder", str(VOLUMES / "coordinator"))
    shutil.copy(VOLUMES / "coordinator" / "coordinator.public.toml", work)
    for site in sites:
        hedgerow("study", "keys", site, "--folder", str(VOLUMES / site))
        shutil.copy(VOLUMES / site / f"{site}.public.toml", work)
    public = [str(work / f"{party}.public.toml") for party in ("coordinator", *sites)]
    roster = work / "roster.toml"
    hedgerow("study", "roster", *public, "--out", str(roster))

    files = write_rand_hie(work / "data")
    plan = plan_for(numbers)
    for site in sites:
        shutil.copy(files.train[site], VOLUMES / site / "table.csv")
        (VOLUMES / site / "policy.toml").write_text(POLICY.format(site=site), encoding="utf-8")
    for folder in (*(VOLUMES / site for site in sites), VOLUMES / "coordinator"):
        (folder / "plan.toml").write_text(plan, encoding="utf-8")
        shutil.copy(roster, folder)
    shutil.copy(files.test, OUT / "test.csv")
    (OUT / "plan.toml").write_text(plan, encoding="utf-8")


def plan_for(numbers: list[int]) -> str:
    """The demonstration's plan, for some of its sites."""
    text, federation = rand_hie_plan_text(numbers), f"min_sites = {len(numbers)}"
    if "HEDGEROW_ROUND_TIMEOUT" in os.environ:
        if federation not in text:
            sys.exit(f"setup: the demonstration's plan no longer says {federation!r}.")
        text = text.replace(federation, f"{federation}\nround_timeout = {os.environ['HEDGEROW_ROUND_TIMEOUT']}")
    return text + (f"\n[model]\n{os.environ['HEDGEROW_MODEL']}\n" if "HEDGEROW_MODEL" in os.environ else "")


def hedgerow(*arguments: str) -> None:
    """Run a command; its words to a person are of no use here."""
    subprocess.run(["hedgerow", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


main()
