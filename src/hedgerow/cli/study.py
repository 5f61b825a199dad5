# SPDX-License-Identifier: Apache-2.0
"""``hedgerow study``: the coordinator's side of a study, and a whole study on one machine.

What trains, evaluates and reads models is imported where it is needed. The commands for the people of a study, such as
`list` and `confirm`, load neither numba nor scipy.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import PLAN, output_folder, read_plan
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import note, print_facts, print_json
from hedgerow.cli import parties
from hedgerow.cli.options import Add, above_zero, add_command, add_fields, add_group, add_shared, read_options, whole
from hedgerow.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from hedgerow.app import study
    from hedgerow.local.training import FederatedEvaluation
    from hedgerow.models.model import Model
    from hedgerow.server.coordinator import RunSession


_SECONDS_BETWEEN_LOOKS = 0.3


_FOLDER: dict[str, Any] = {"metavar": "FOLDER", "help": "the study's folder (this one, or the only one below it)"}


def _add_run(add: Add, *more: str) -> None:
    add_shared(add, *more)
    add("--study", **_FOLDER)
    add_fields(add, CoordinatorOptions, "--log-format")
    add_shared(add, "--json")


def add_commands(commands: Any) -> None:
    """Add `study`."""
    actions = add_group(commands, "study", "coordinate a study: invite sites, confirm them, carry runs out")
    add = add_command(actions, "new", new, "make a study's folder: keys and plan")
    add("name", metavar="NAME", help="the study's name, and its folder's")
    add("--plan", required=True, metavar="PLAN", help="the plan of its first run")
    add("--listen", required=True, metavar="HOST:PORT", help="where this machine listens")
    add("--address", metavar="HOST:PORT", help="where sites dial, if that is another address (--listen)")
    add = add_command(actions, "invite", invite, "write one invitation file for each party")
    add("sites", nargs="*", metavar="SITE", help="the sites' names")
    text = "a party that may watch runs and do nothing else; repeat"
    add("--monitor", action="append", default=[], dest="monitors", metavar="NAME", help=text)
    text = "what a site is asked to allow over all runs, in the policy that it is to confirm (the plan's)"
    add("--max-epsilon", type=above_zero, metavar="E", help=text)
    add("--policy", metavar="FILE", help="lines of a policy, but for version and data_set, that sites are to confirm")
    text = "write new invitations; the old ones of these parties are void, the policies that they propose are kept"
    add("--again", action="store_true", help=text)
    add("--study", **_FOLDER)
    text = "say that the coordinator is somewhere else from now on"
    add = add_command(actions, "address", address, text)
    add("address", metavar="HOST:PORT", help="where sites dial")
    add("--listen", metavar="HOST:PORT", help="where this machine listens (as before, or ADDRESS if it was the same)")
    add("--study", **_FOLDER)
    text = "expect a party no more; one that is in the roster is taken out, and its keys are trusted no longer"
    add = add_command(actions, "withdraw", withdraw, text)
    add("party", metavar="PARTY")
    add("--study", **_FOLDER)
    text = "say that a party has read these words: its keys are pinned"
    add = add_command(actions, "confirm", confirm, text)
    add("words", nargs="+", metavar="PARTY=WORDS", help='as north="apple river stone lamp"')
    add("--study", **_FOLDER)
    _add_runs(actions)


def _add_runs(actions: Any) -> None:
    """Add what a study's coordinator does once its sites are invited."""
    text = "wait for all parties, compare their words, and carry out the first run"
    add = add_command(actions, "serve", serve, text)
    text = 'as `study confirm`, for one party: north="apple river stone lamp"; repeat'
    add("--confirm", action="append", default=[], metavar="PARTY=WORDS", help=text)
    add_shared(add, "--console")
    _add_run(add, "--seed")
    add = add_command(actions, "run", run, "go on with the newest run, or begin another one")
    add("--plan", metavar="PLAN", help="a new plan, from this run on; every site has to take it up")
    add_shared(add, "--console")
    _add_run(add, "--seed", "--new-run")
    text = "evaluate a model over the rows that sites hold out"
    add = add_command(actions, "evaluate", evaluate, text)
    add("--epsilon", type=above_zero, required=True, metavar="E", help="what this evaluation may cost")
    add("--noise", choices=("distributed", "server"), help="as for `hedgerow evaluate` (distributed)")
    add_fields(add, CoordinatorOptions, "--by")
    _add_run(add, "--seed", "--new-run")
    text = "ask the sites for statistics of the plan's columns, as far as their policies allow (surveys = true)"
    add = add_command(actions, "survey", survey, text)
    add("--epsilon", type=above_zero, required=True, metavar="E", help="what all these statistics may cost")
    add("--noise", choices=("distributed", "server"), help="as for `hedgerow survey` (distributed)")
    _add_run(add, "--seed", "--new-run")
    text = "let the newest run rest between two rounds; its sites wait until `study run` goes on with it"
    add_command(actions, "pause", pause, text)("--study", **_FOLDER)
    text = "end the newest run for good, and tell its sites, which then wait for another"
    _add_run(add_command(actions, "abort", abort, text))
    text = "a whole study on this machine: real data, a process for each party, the same commands"
    add = add_command(actions, "demo", demo, text)
    add("--sites", type=whole(3, 6), default=6, metavar="N", help="3 to 6 (%(default)s)")
    add("--out", default="hedgerow-study", metavar="FOLDER", help="a new folder for all of it (%(default)s)")
    text = "write what may be restored of a study's folder into one file; a run may go on meanwhile"
    add = add_command(actions, "backup", back_up, text)
    add("file", metavar="FILE", help="the new file, which holds the coordinator's private keys")
    add("--study", **_FOLDER)
    text = "make a study's folder out of a backup; no run goes on from it"
    add = add_command(actions, "restore", restore, text)
    add("file", metavar="FILE", help="what `hedgerow study backup` has written")
    add("folder", metavar="FOLDER", help="the folder, which must not be there")
    parties.add_commands(actions)
    add = add_command(actions, "list", show, "say who takes part, and which runs there were")
    add("--study", **_FOLDER)
    add_shared(add, "--json")


def new(arguments: argparse.Namespace) -> None:
    """Make a study's folder."""
    from hedgerow.app import study

    study.new(arguments.name, arguments.plan, arguments.listen, arguments.address)


def invite(arguments: argparse.Namespace) -> None:
    """Write one invitation for each party."""
    from hedgerow.app import study

    study.invite(
        study.find_folder(arguments.study),
        arguments.sites,
        arguments.monitors,
        max_epsilon=arguments.max_epsilon,
        policy=arguments.policy,
        again=arguments.again,
    )


def address(arguments: argparse.Namespace) -> None:
    """Move a study to another address."""
    from hedgerow.app import study

    study.move(study.find_folder(arguments.study), arguments.address, arguments.listen)


def withdraw(arguments: argparse.Namespace) -> None:
    """Take an invitation back, or a party out of the roster."""
    from hedgerow.app import study

    study.withdraw(study.find_folder(arguments.study), arguments.party)


def confirm(arguments: argparse.Namespace) -> None:
    """Pin the keys of parties whose words the operator has compared."""
    from hedgerow.app import study

    study.confirm(study.find_folder(arguments.study), arguments.words)


def _read_options(arguments: argparse.Namespace) -> study.StudyOptions:
    from hedgerow.app import study

    return read_options(study.StudyOptions, arguments, folder=study.find_folder(arguments.study))


def serve(arguments: argparse.Namespace) -> None:
    """Wait for all parties, have their words compared, send the roster, and carry out the first run."""
    from hedgerow.app import study

    study.serve(_read_options(arguments), arguments.confirm, _report(arguments))


def run(arguments: argparse.Namespace) -> None:
    """Go on with the newest run, or begin another one."""
    from hedgerow.app import study

    study.run(_read_options(arguments), arguments.plan, _report(arguments))


def _report(arguments: argparse.Namespace) -> study.Report:
    def report(model: Model, session: RunSession, place: Path) -> None:
        from hedgerow.cli.coordinator import print_model

        print_model(model, session, place, as_json=arguments.json)

    return report


def pause(arguments: argparse.Namespace) -> None:
    """Let the newest run rest between two rounds."""
    from hedgerow.app import study

    study.pause(study.find_folder(arguments.study))


def evaluate(arguments: argparse.Namespace) -> None:
    """Evaluate the model of a run over the rows that the sites hold out."""
    from hedgerow.app import study

    def report(found: FederatedEvaluation, sites: list[str], place: Path) -> None:
        from hedgerow.cli.evaluate import show

        show(found, sites, place, None, is_seeded=arguments.seed is not None, as_json=arguments.json)

    noise, by = arguments.noise or "", arguments.by
    study.evaluate(_read_options(arguments), arguments.epsilon, noise, by, report)


def survey(arguments: argparse.Namespace) -> None:
    """Ask the sites for statistics of the plan's columns, by `hedgerow survey`, into a folder of their own.

    Where the plan's label is a time to an event, for Kaplan-Meier curves. The same command goes on with one that was
    cut off.
    """
    from hedgerow.app import study
    from hedgerow.app.survey import SurveyOptions, survey_over_nodes
    from hedgerow.cli.survey import show as show_survey

    options = _read_options(arguments)
    study.require_roster(options.folder)
    place = options.folder / PLAN
    plan, party = read_plan(str(place)), options.coordinator()
    number = next(n for n in count(1) if not (options.folder / f"survey-{n}" / "survey.json").is_file())
    folder = output_folder(str(options.folder / f"survey-{number}"))
    privacy, is_survival = plan.privacy, bool(plan.label.intervals)
    asked = SurveyOptions(
        epsilon=arguments.epsilon,
        delta=privacy.delta,
        noise=arguments.noise,
        label="" if is_survival else plan.label.name,
        schema=None if is_survival else str(place),
        survival=str(place) if is_survival else None,
        unit=None if privacy.unit == "record" else privacy.unit,
        max_rows_per_unit=privacy.max_rows_per_unit,
        quiet=arguments.json,
    )
    made = survey_over_nodes(asked, party, folder, is_new=arguments.new_run)
    show_survey(asked, made, folder, "study run --plan {plan}")


def abort(arguments: argparse.Namespace) -> None:
    """End the newest run for good."""
    from hedgerow.app import study
    from hedgerow.cli.coordinator import print_end

    print_end(*study.abort(_read_options(arguments)), as_json=arguments.json)


def back_up(arguments: argparse.Namespace) -> None:
    """Write a backup of a study's folder."""
    from hedgerow.app import study
    from hedgerow.app.backup import back_up_study

    back_up_study(study.find_folder(arguments.study), Path(arguments.file))


def restore(arguments: argparse.Namespace) -> None:
    """Make a study's folder out of a backup."""
    from hedgerow.app.backup import restore_study

    restore_study(Path(arguments.file), Path(arguments.folder))


def show(arguments: argparse.Namespace) -> None:
    """Print the study's parties and runs."""
    from hedgerow.app import study
    from hedgerow.study import StudyBook

    with closing(StudyBook(study.find_folder(arguments.study))) as book:
        keys = study.read_identity(book).public
        guests = [
            {
                "name": guest.name,
                "role": guest.role.value,
                "state": study.describe_state(guest),
                "words": guest.words(keys),
            }
            for guest in book.guests()
        ]
        last, _ = study.newest_run(book.folder)
        runs = [
            {"run": n, "folder": str(study.run_folder(book.folder, n)), "state": study.run_state(book.folder, n)}
            for n in range(1, last + 1)
        ]
        words, roster = book.roster_words, book.roster
        fingerprint = "" if roster is None else roster.fingerprint()
        # Of a later roster only those who came with it have words: all others compare the fingerprint.
        shown = words if roster is None or roster.edition == 1 else "only at those who came last"
        name, address = book.fact("name"), book.fact("address")
    if arguments.json:
        to_compare = {"roster_words": words, "roster_fingerprint": fingerprint}
        print_json({"study": name, "address": address, **to_compare, "parties": guests, "runs": runs})
        return
    facts = [("study", name), ("sites dial", address), ("roster's words", shown or "none yet")]
    print_facts([*facts, ("fingerprint", fingerprint or "none yet")])
    print("\nParties")
    print_facts([(one["name"], f"{one['state']}{', ' + one['words'] if one['words'] else ''}") for one in guests])
    if runs:
        print("\nRuns")
        print_facts([(f"run {run['run']}", f"{run['state']}, {run['folder']}") for run in runs])


# A study on one machine -----------------------------------------------------------------------------------------------
# ``hedgerow study demo``, by the commands that its parties type, each in a process. The people are the only part that
# is played: each end is told the words that the other end shows, as in a call.

_STUDY = "demo"


def demo(arguments: argparse.Namespace) -> None:
    """Invite, join, compare, train; leave the study's and the sites' folders behind."""
    from hedgerow.data.datasets import write_rand_hie

    folder = Path(arguments.out)
    if folder.exists():
        raise UsageError("exists", code="study-exists", path=folder)
    data = write_rand_hie(folder, n_sites=arguments.sites)
    tables = dict(list(data.train.items())[: arguments.sites])
    text = data.plan.read_text(encoding="utf-8").replace("[privacy]\n", '[privacy]\nnoise = "distributed"\n')
    data.plan.write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as stack:
        scene = _Scene(folder, stack)
        scene.type("study", "new", _STUDY, "--plan", "plan.toml", "--listen", address)
        scene.type("study", "invite", *tables, "--max-epsilon", "3")
        scene.start("coordinator", "study", "serve")
        for site, table in tables.items():
            (folder / site).mkdir()
            (folder / _STUDY / f"{site}.invitation").rename(folder / site / f"{site}.invitation")
            scene.start(site, "join", f"{site}/{site}.invitation", "--data", table.name, "--yes")
        note("(Each site reads its table, and then shows four words, as the coordinator does: some seconds each.)")
        for site in tables:
            at_site, at_coordinator = scene.words_at(site), scene.words_of(site)
            note(f"(The call: {site} reads {at_site!r}, the coordinator {at_coordinator!r}.)")
            scene.type("join", f"{site}/{site}.invitation", "--confirm", at_coordinator)
            scene.type("study", "confirm", f"{site}={at_site}")
        note(f"(All words are the same, so the run begins; {folder / 'coordinator.log'} follows it.)")
        scene.wait_for("coordinator", "")
        for site in tables:
            scene.wait_for(site, "waits for the next run")
    models = [next((folder / site).glob(f"{_STUDY}-{site}/model-*.json")) for site in tables]
    own = folder / _STUDY / "run-1" / "model.json"
    print_facts(
        [
            ("study", str(folder / _STUDY)),
            ("model", str(own)),
            (
                "at the sites",
                f"{sum(model.read_bytes() == own.read_bytes() for model in models)} of {len(models)} have it",
            ),
            ("what each said", str(folder / "*.log")),
        ]
    )
    again = "start each `hedgerow join` again, and then another run: `hedgerow study run`"
    note(f"All parties have stopped. To go on: cd {folder}, {again}.")


class _Scene:
    """A folder in which commands are run, some of them in the background."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._staying: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, *words: str, shows: bool = True) -> str:
        """Run a command to its end; return what it printed.

        Raises EnvironmentFault "demo-command" if it fails.
        """
        if shows:
            note(f"$ hedgerow {shlex.join(words)}")
        done = subprocess.run(self._build_command(words), cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentFault("demo-command", command=shlex.join(words), said=done.stderr[-2000:])
        return done.stdout

    def start(self, name: str, *words: str) -> None:
        """Start a command that stays until the demonstration ends."""
        note(f"$ hedgerow {shlex.join(words)} &")
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            self._build_command(words), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        self._staying[name] = process
        self._stack.callback(self._end, process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        # Not by SIGINT, which what a script starts in the background ignores.
        process.terminate()
        process.wait()

    @staticmethod
    def _build_command(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "hedgerow", *words]

    def wait_for(self, name: str, pattern: str) -> str:
        """Wait until a command that stays says something, its first group; or, for nothing, until it has ended."""
        log, process = self._folder / f"{name}.log", self._staying[name]
        while True:
            code = process.poll()
            # Lines are wrapped for the terminal.
            said = " ".join(log.read_text(encoding="utf-8").split())
            found = re.search(pattern, said) if pattern else None
            if found is not None or (code == 0 and not pattern):
                return found[found.lastindex or 0] if found is not None else ""
            if code is not None:
                raise EnvironmentFault("demo-command", command=f"({name})", said=said[-2000:])
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def words_at(self, site: str) -> str:
        """Return the words that a site shows."""
        return self.wait_for(site, r"Your words: ((?:[a-z]+ ){3}[a-z]+)")

    def words_of(self, site: str) -> str:
        """Return the words that the coordinator shows for a site."""
        listed: Mapping[str, list[dict[str, str]]] = json.loads(self.type("study", "list", "--json", shows=False))
        return next(party["words"] for party in listed["parties"] if party["name"] == site)
