"""``hedgerow study``: the coordinator's side of a study, from one plan and invitations to runs and their history.

What trains, evaluates and reads models is imported where it is needed: the commands for the people of a study, such as
`list` and `confirm`, load neither numba nor scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.app.cost import groups_text
from hedgerow.app.inputs import address_of, asked, is_terminal, listed, read_plan, read_text
from hedgerow.app.output import name_log, note, print_facts, print_json, warn
from hedgerow.errors import AggregationError, EnvironmentFault, HedgerowError, UsageError
from hedgerow.local.forecast import SMALLEST_GROUP, USUAL_GROUPS
from hedgerow.plan.plan import Plan
from hedgerow.plan.toml import toml_value
from hedgerow.privacy.events import scoped
from hedgerow.protocol.stream import Farewell, WireCode, WireRefusal
from hedgerow.study import (
    COORDINATOR,
    PLAN,
    ROSTER,
    SUFFIX,
    Guest,
    Invitation,
    Reception,
    StudyBook,
    check_address,
    new_secret,
    write_private,
)
from hedgerow.transport.connections import allow_many_connections
from hedgerow.transport.grpc_hub import HubAddress, StudyServer
from hedgerow.transport.identities import (
    PRIVATE_SUFFIX,
    PinnedRoster,
    PrivateIdentity,
    Role,
    check_name,
    create_identity,
    follows,
    read_private,
    read_roster,
    write_new,
)

if TYPE_CHECKING:
    from hedgerow.app.coordinator import CoordinatorOptions, ModelFile
    from hedgerow.app.page import Console, PastRun

_SECONDS_BETWEEN_LOOKS, _SECONDS_BETWEEN_WAITS = 0.3, 60.0
_ANY_HOST = {"0.0.0.0", "::"}
"""Where a coordinator may listen, and no one can dial."""


# A study and its parties --------------------------------------------------------------------------------------------


def new(arguments: argparse.Namespace) -> None:
    """Make a study's folder: the coordinator's keys, the plan, and a book of guests."""
    from hedgerow.app import coordinator

    name, plan = check_name(arguments.name), read_plan(arguments.plan)
    coordinator.require_masks(plan)
    host, _ = address_of(arguments.listen, "--listen")
    address = arguments.address or arguments.listen
    check_address(address, "--address" if arguments.address else "--listen")
    if host in _ANY_HOST and not arguments.address:
        raise UsageError("study-address", listen=arguments.listen)
    folder, draft = Path(name), Path(f".{name}.new")
    if folder.exists():
        raise UsageError("study-exists", folder=folder)
    # What a killed command has left behind is not a study.
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    identity, _, _ = create_identity(draft, COORDINATOR, Role.COORDINATOR)
    write_new(draft / PLAN, read_text(arguments.plan))
    StudyBook.create(draft, {"name": name, "listen": arguments.listen, "address": address}).close()
    draft.rename(folder)
    print_facts(
        [
            ("study", f"{name}, in the folder {folder}"),
            ("plan", f"{plan.name}, epsilon {plan.privacy.epsilon:g} at delta {plan.privacy.delta:g}"),
            ("groups of sites", groups_text(plan, max(USUAL_GROUPS * SMALLEST_GROUP, plan.federation.min_sites))),
            ("sites dial", address),
            ("fingerprint", identity.public.fingerprint()),
        ]
    )
    note(f"Next: `hedgerow study invite SITE ...`. {folder} holds the coordinator's keys: keep it, and back it up.")


def folder_of(given: str | None) -> Path:
    """A study's folder: as given, this one, or the only one below it; raises UsageError "study-folder"."""
    if given is not None:
        if not (Path(given) / "study.db").is_file():
            raise UsageError("study-folder", folder=given)
        return Path(given)
    here = Path()
    if (here / "study.db").is_file():
        return here
    found = sorted(place.parent for place in here.glob("[!.]*/study.db"))
    if len(found) != 1:
        raise UsageError("study-folder", folder="." if not found else listed(map(str, found)))
    return found[0]


def _identity(book: StudyBook) -> PrivateIdentity:
    return read_private(book.folder / f"{COORDINATOR}{PRIVATE_SUFFIX}")


def _proposed(arguments: argparse.Namespace, plan: Plan, before: str | None) -> str:
    """The policy that a site is asked to confirm, without the name of its data; raises UsageError.

    Args: before: that of the invitation that this one replaces, for where the command names none.
    """
    from hedgerow.client.policy import parse_policy

    if arguments.policy is not None:
        text = read_text(arguments.policy)
    elif before is not None and arguments.max_epsilon is None:
        text = before
    else:
        most = plan.privacy.epsilon if arguments.max_epsilon is None else arguments.max_epsilon
        text = f"max_epsilon = {most}\ndelta = {plan.privacy.delta}\n"
    parse_policy(policy_of(text, "the data", plan.privacy.noise)).check_plan(plan)
    return text


def policy_of(proposed: str, data_set: str, noise: str = "distributed") -> str:
    """A policy's text, out of a proposal and what the owner calls the data.

    Args: noise: the plan's; noise that others add is no part of a proposal, and every owner is asked for it in words.
    """
    # A proposal that names the data as well cannot be read: with a new name for them, their budget would begin again.
    grants = "" if noise == "distributed" or re.search(r"(?m)^\s*noise\b", proposed) else f'noise = ["{noise}"]\n'
    return f"version = 1\ndata_set = {toml_value(data_set)}\n{grants}{proposed}"


def invite(arguments: argparse.Namespace) -> None:
    """Write one invitation for each party."""
    with closing(StudyBook(folder_of(arguments.study))) as book:
        plan, identity = read_plan(str(book.folder / PLAN)), _identity(book)
        given = ((Role.SITE, arguments.sites), (Role.MONITOR, arguments.monitors))
        parties = [(name, role) for role, names in given for name in names]
        if not parties:
            raise UsageError("nobody-invited")
        for name, _ in parties:
            if check_name(name) == COORDINATOR:
                raise UsageError("invited-coordinator", name=name)
        # All of them before the first is written: what is refused has invited nobody.
        policies = {
            (name, role): _proposed(arguments, plan, book.proposed_to(name) if arguments.again else None)
            if role is Role.SITE
            else ""
            for name, role in parties
        }
        for name, role in parties:
            place = book.folder / f"{name}{SUFFIX}"
            if place.exists() and not arguments.again:
                raise UsageError("invitation-exists", path=place)
            invitation = Invitation(
                book.fact("name"), name, role, identity.public, book.fact("address"),
                read_text(str(book.folder / PLAN)), policies[name, role], new_secret(),
            )  # fmt: skip
            book.invite(invitation)
            place.unlink(missing_ok=True)
            write_private(place, invitation.to_text())
            print(place)
    if arguments.sites:
        from hedgerow.client.policy import parse_policy

        asked = {parse_policy(policy_of(text, "the data")).max_epsilon for text in policies.values() if text}
        # A newcomer who is asked for less than those before is out of budget when they are not.
        note(f"Each site is asked to allow epsilon {' or '.join(f'{most:g}' for most in sorted(asked))} over all runs.")
        if plan.privacy.noise != "distributed":
            warn(
                f'The plan has noise = "{plan.privacy.noise}", which no invitation grants: each owner has to type the '
                "word, or to bring a policy of their own (`join --policy`) that names it."
            )
    note(
        "Send each file to its party; who uses one first is that party until you compare the words. Then: "
        "`hedgerow study serve`."
    )


def address(arguments: argparse.Namespace) -> None:
    """Move a study to another address: where its sites dial, and where this machine listens."""
    new = check_address(arguments.address, "ADDRESS")
    with closing(StudyBook(folder_of(arguments.study))) as book:
        before, listen = book.fact("address"), book.fact("listen")
        # One address for both moves as one.
        listen = arguments.listen or (new if listen == before else listen)
        address_of(listen, "--listen")
        book.move(new, listen)
    note(f"From its next start the coordinator listens on {listen}; new invitations name {new}.")
    note(f"Every site starts `hedgerow join` with --connect {new}. Keys, roster and runs stay as they are.")


def withdraw(arguments: argparse.Namespace) -> None:
    """Take an invitation back, or a party out of the roster: runs that begin from now on are without it."""
    from hedgerow.models.model import write_atomically

    folder, name = folder_of(arguments.study), arguments.party
    with closing(StudyBook(folder)) as book:

        def pin(made: PinnedRoster) -> None:
            _require_idle(folder)
            _require_own_roster(book, made)
            write_atomically(folder / ROSTER, made.to_toml().encode())

        roster = book.withdraw(name, pin)
        (folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
    note(f"{name} is not expected any more.")
    if roster is not None:
        note(f"Its keys are trusted no longer. {_new_roster(roster)}")


def _require_idle(folder: Path) -> None:
    """Raises UsageError "study-run-open" or "study-in-use" where a run or an evaluation would keep its roster."""
    last, is_over = newest_run(folder)
    if last and not is_over:
        raise UsageError("study-run-open", number=last)
    for journal in sorted(folder.glob("run-*/*.journal")):
        if _is_carried_out(journal):
            raise UsageError("study-in-use", journal=journal)


def _new_roster(roster: PinnedRoster) -> str:
    return (
        f"The roster is a new one, of epoch {roster.epoch}: {roster.fingerprint()}. Read that to the sites, whose "
        "nodes ask their owners at the next run."
    )


def _require_own_roster(book: StudyBook, made: PinnedRoster | None = None) -> None:
    """Raises UsageError "study-roster-by-hand" where runs read a roster that the study did not make.

    The study's next one would follow its own, and might trust keys again that somebody has taken out by hand.

    Args: made: the next one, which a command that was killed may have written already.
    """
    place, own = book.folder / ROSTER, book.roster
    if own is None or not place.is_file():
        return
    found = read_roster(place)
    # While newcomers are sent theirs, the study's own is newer than the file.
    if found not in (own, made) and not follows(own, found):
        raise UsageError("study-roster-by-hand", path=place)


def confirm(arguments: argparse.Namespace) -> None:
    """Pin the keys of parties whose words the operator has compared."""
    with closing(StudyBook(folder_of(arguments.study))) as book:
        _confirm(book, arguments.words)


def _confirm(book: StudyBook, given: Sequence[str]) -> None:
    coordinator_keys = _identity(book).public
    for each in given:
        name, equals, words = each.partition("=")
        if not equals:
            raise UsageError("usage-confirm", each=each)
        book.confirm(name, words, coordinator_keys)
        note(f"{name} is confirmed.")


# Enrolment ----------------------------------------------------------------------------------------------------------


def serve(arguments: argparse.Namespace) -> None:
    """Wait for all parties, have their words compared, send the roster, and carry out the first run."""
    name_log(COORDINATOR)
    folder = folder_of(arguments.study)
    with closing(StudyBook(folder)) as book:
        _confirm(book, arguments.confirm)
        are_all_in = all(guest.has_all for guest in book.guests())
    last, is_over = newest_run(folder)
    # A run that is open has the roster with which it began.
    is_receiving = not (folder / ROSTER).is_file() or not (are_all_in or (last and not is_over))
    late = [] if is_receiving else _late(folder, last)
    if late:
        note(f"Run {last} is over. Away at its end, and told of it now: {listed(late)}.")
    is_resting = not late and (is_over or (last > 0 and _pause_of(folder, last).exists()))
    with _page(folder, arguments) if is_receiving or not is_resting else nullcontext() as page:
        if is_receiving:
            with closing(StudyBook(folder)) as book:
                _receive(book, page)
        if not is_resting:
            carry_out(folder, max(last, 1), arguments, page)
            return
    stands, what = ("over", "begins another") if is_over else ("paused", "goes on with it")
    note(f"Run {last} is {stands}: {run_folder(folder, last)}. `hedgerow study run` {what}.")


@contextmanager
def _page(folder: Path, arguments: argparse.Namespace) -> Iterator[Console | None]:
    """The page of the study, if one is wanted: from before the first run, with those that are over."""
    if arguments.console is None:
        yield None
        return
    # An extra: only who wants the page needs it.
    from hedgerow.app.page import Console

    with closing(StudyBook(folder)) as book:
        name = book.fact("name")
    with Console(arguments.console, read_plan(str(folder / PLAN))) as page:
        page.say(study=name)
        yield page


def _warn_of_few_sites(book: StudyBook, sites: Sequence[str]) -> None:
    """Say before anyone calls anyone that nodes would take part in no run of so few sites."""
    from hedgerow.client.policy import parse_policy

    proposed = [text for text in map(book.proposed_to, sites) if text is not None]
    least = max((parse_policy(policy_of(text, "the data")).min_sites for text in proposed), default=0)
    if len(sites) < least:
        warn(
            f"{len(sites)} site(s) are invited, and the proposed policies take part with {least} or more (min_sites): "
            "their nodes would end as policy-small-cohort. Invite more sites; or invite these `--again`, with a "
            "`--policy` that says fewer, if their owners want to."
        )


def _receive(book: StudyBook, page: Console | None) -> None:
    """Serve the parties until all have the roster."""
    from hedgerow.models.model import write_atomically

    identity = _identity(book)
    guests = book.guests()
    if not any(guest.role is Role.SITE for guest in guests):
        raise UsageError("nobody-invited")
    _require_own_roster(book)
    _warn_of_few_sites(book, [guest.name for guest in guests if guest.role is Role.SITE])
    host, port = address_of(book.fact("listen"), "--listen")
    allow_many_connections()
    # A book for each thread: one that the server writes to while the operator confirms somebody waits for its turn.
    with closing(StudyBook(book.folder)) as desk:
        answering = _Answering(Reception(identity.public, desk, os.urandom))
        server = StudyServer(identity, HubAddress(host, port), len(guests), answering)
        try:
            note(f"Listening on {book.fact('listen')} for {listed(guest.name for guest in guests)}.")
            lines = _Lines(book, identity, page)
            while not lines.look():
                answering.require_well()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            server.close()
    roster = book.roster
    if roster is not None:
        write_atomically(book.folder / ROSTER, roster.to_toml().encode())


class _Answering:
    """Gives the answers of a reception; what stops this end, a full disk above all, is told to its operator alone."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._fault: HedgerowError | None = None

    def __call__(self, message: bytes) -> bytes:
        try:
            return self._reception.answer(message).to_bytes()
        except HedgerowError as fault:
            self._fault = fault
            return Farewell.of(WireRefusal(WireCode.CLOSED)).to_bytes()

    def require_well(self) -> None:
        """Raises what has gone wrong here."""
        if self._fault is not None:
            raise self._fault


class _Lines:
    """Says what becomes of the guests, and asks the operator about each one's words."""

    def __init__(self, book: StudyBook, identity: PrivateIdentity, page: Console | None) -> None:
        self._book, self._coordinator, self._page = book, identity.public, page
        self._said = set[str]()
        self._since, self._awaited, self._told_at = time.monotonic(), "", -math.inf

    def look(self) -> bool:
        """Whether all parties have the roster."""
        guests = self._book.guests()
        self._say_who_is_awaited(guests)
        for guest in guests:
            if guest.party is not None and not guest.is_confirmed:
                self._introduce(guest)
        # Asked again where it is written: somebody may be invited meanwhile.
        if not all(guest.is_confirmed for guest in guests) or not self._book.close_roster(self._coordinator):
            return False
        self._say("All parties are confirmed. Each is sent the roster.")
        if words := self._book.roster_words:
            roster = self._book.roster
            is_first = roster is None or roster.epoch == 1
            if roster is not None and not is_first:
                self._say(_new_roster(roster))
            self._say(f"The roster's words, the same at every party{'' if is_first else ' that came last'}: {words}")
        return all(guest.has_all for guest in self._book.guests())

    def _say_who_is_awaited(self, guests: Sequence[Guest]) -> None:
        """For whom the study waits and since when: at once, when that changes, and each minute."""
        parties = {
            "to join": [guest.name for guest in guests if guest.party is None],
            "to be confirmed": [guest.name for guest in guests if guest.party is not None and not guest.is_confirmed],
        }
        if not any(parties.values()):
            parties["to take the roster"] = [guest.name for guest in guests if not guest.has_all]
        awaited = ", ".join(f"{listed(names)} {what}" for what, names in parties.items() if names)
        now = time.monotonic()
        text = f"waiting for {awaited} (since {now - self._since:,.0f} s, until they come)" if awaited else ""
        if self._page is not None:
            self._page.show_parties([(guest.name, _state(guest), guest.has_all) for guest in guests], text)
        if text and (awaited != self._awaited or now - self._told_at >= _SECONDS_BETWEEN_WAITS):
            self._awaited, self._told_at = awaited, now
            note(f"{text[:1].upper()}{text[1:]}.")

    def _introduce(self, guest: Guest) -> None:
        words = guest.words(self._coordinator)
        self._say(f"{guest.name} has enrolled. Its words: {words}")
        if is_terminal():
            said = asked(f"Call {guest.name}. Which four words do they read to you?")
            now = self._book.guest(guest.name)
            # The question may have stood for long: `study confirm`, `invite --again` and `withdraw` go on beside it.
            if not said or now is None or now.is_confirmed or now.invitation != guest.invitation:
                return
            try:
                self._book.confirm(guest.name, said, self._coordinator)
                self._say(f"{guest.name} is confirmed.")
            except UsageError as fault:
                note(f"{fault.what} {fault.remedy}")
        else:
            self._say(f'Call {guest.name}, and then: hedgerow study confirm {guest.name}="the words that they read"')

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            note(text)


# Runs ---------------------------------------------------------------------------------------------------------------


def run_folder(folder: Path, number: int) -> Path:
    """Where the files of a run are."""
    return folder / f"run-{number}"


def newest_run(folder: Path) -> tuple[int, bool]:
    """The number of the last run, 0 for none, and whether it is over: its model is there, or it was ended."""
    numbers = [int(place.name[4:]) for place in folder.glob("run-*") if place.name[4:].isdecimal()]
    last = max(numbers, default=0)
    place = run_folder(folder, last)
    return last, last > 0 and ((place / "model.json").is_file() or (place / "ended").is_file())


def carry_out(folder: Path, number: int, arguments: argparse.Namespace, page: Console | None = None) -> None:
    """Begin a run, or go on with it, by `hedgerow coordinator`, and hand its model out. Args: page: of the study."""
    from hedgerow.cli import coordinator as commands

    place = run_folder(folder, number)
    place.mkdir(mode=0o700, exist_ok=True)
    plan = place / PLAN
    if not plan.exists():
        write_new(plan, read_text(str(folder / PLAN)))
    if page is not None:
        page.show_history(past_runs(folder, number), read_plan(str(plan)))
        page.show_plan(read_plan(str(plan)))
    try:
        file = _file_of(folder, number, arguments)
        commands.train(_options(folder, arguments), read_plan(str(plan)), file, page, hands_out=True)
    except AggregationError as fault:
        if fault.code != "run-paused":
            raise
        note(f"{fault.what} {fault.remedy}")
        if page is not None:
            page.fail(fault)
        return
    if page is not None:
        page.wait()
    _say_who_was_away(folder, number)


def _say_who_was_away(folder: Path, number: int) -> None:
    if late := _late(folder, number):
        note(f"Not by {listed(late)}: once they are back, `hedgerow study serve` gives it to them.")


def _late(folder: Path, number: int) -> list[str]:
    """The sites that have not taken the model of a run, if it has made one."""
    from hedgerow.app import coordinator

    model = run_folder(folder, number) / "model.json"
    return sorted(coordinator.late(model, read_roster(folder / ROSTER))) if model.is_file() else []


def _pause_of(folder: Path, number: int) -> Path:
    from hedgerow.app import coordinator

    return coordinator.paused_file(_journal_of(folder, number))


def _journal_of(folder: Path, number: int) -> Path:
    return run_folder(folder, number) / "model.json.journal"


def past_runs(folder: Path, before: int) -> list[PastRun]:
    """The runs before one of this number that have ended, or have made a model: what all parties were told of them."""
    from hedgerow.app.page import PastRun
    from hedgerow.models.model import Model
    from hedgerow.server.journal import Journal

    found = []
    for number in range(1, before):
        place, state = run_folder(folder, number), _run_state(folder, number)
        if state == "finished":
            model = Model.load(place / "model.json")
            plan, releases, remark = model.plan, model.ledger.releases[len(model.plan.prepared) :], ""
        elif state == "ended":
            with closing(Journal(_journal_of(folder, number))) as journal:
                plan, releases, remark = read_plan(str(place / PLAN)), journal.entries(), "no model"
        else:
            continue
        # A filter's budget is spent once in each run.
        events = scoped((release.event for release in releases), str(number))
        found.append(PastRun(f"run {number}", state, plan, tuple(events), remark))
    return found


def _file_of(folder: Path, number: int, arguments: argparse.Namespace) -> ModelFile:
    """Where the model of a run goes."""
    from hedgerow.app.coordinator import ModelFile

    return ModelFile(run_folder(folder, number) / "model.json", None, _journal_of(folder, number), quiet=arguments.json)


def run(arguments: argparse.Namespace) -> None:
    """Go on with the newest run, or begin another one."""
    from hedgerow.app import coordinator
    from hedgerow.models.model import write_atomically

    name_log(COORDINATOR)
    folder = folder_of(arguments.study)
    _require_roster(folder)
    last, is_over = newest_run(folder)
    if arguments.plan is not None:
        coordinator.require_masks(read_plan(arguments.plan))
        # The same command again goes on with the run that it has begun.
        begun = run_folder(folder, last) / PLAN
        if last and not is_over and not (begun.exists() and read_text(str(begun)) == read_text(arguments.plan)):
            raise UsageError("study-run-open", number=last)
        write_atomically(folder / PLAN, read_text(arguments.plan).encode())
        note(f"Send {arguments.plan} to all sites; each takes it up by `hedgerow join INVITATION --plan FILE ...`.")
    number = last + 1 if is_over or not last else last
    _pause_of(folder, number).unlink(missing_ok=True)
    with _page(folder, arguments) as page:
        carry_out(folder, number, arguments, page)


def pause(arguments: argparse.Namespace) -> None:
    """Let the newest run rest between two rounds until `study run`; waits until it does."""
    folder = folder_of(arguments.study)
    last, is_over = newest_run(folder)
    if not last or is_over:
        raise UsageError("study-no-run")
    _pause_of(folder, last).touch(mode=0o600)
    while _is_carried_out(_journal_of(folder, last)):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if newest_run(folder)[1]:
        _pause_of(folder, last).unlink(missing_ok=True)
        note(f"Run {last} was over before it could be paused.")
        return
    note(f"Run {last} is paused; its sites wait. `hedgerow study run` goes on with it, `hedgerow study abort` ends it.")


def _is_carried_out(journal: Path) -> bool:
    """Whether a coordinator works with it."""
    from hedgerow.server.journal import Journal

    if not journal.is_file():
        return False
    try:
        Journal(journal).close()
    except EnvironmentFault as fault:
        if fault.code != "database-locked":
            raise
        return True
    return False


def evaluate(arguments: argparse.Namespace) -> None:
    """Evaluate the model of a run over the rows that the sites hold out, and hand it out."""
    from hedgerow.app.coordinator import ModelFile, hand_out
    from hedgerow.app.evaluation import evaluate_over_nodes, journal_of, to_be_evaluated
    from hedgerow.cli.evaluate import show
    from hedgerow.models.model import Model

    folder = folder_of(arguments.study)
    _require_roster(folder)
    number = newest_model(folder) if arguments.run is None else arguments.run
    place = run_folder(folder, number) / "model.json"
    if not place.is_file():
        raise UsageError("study-no-run")
    model, options = Model.load(place), _options(folder, arguments)
    file = ModelFile(place, model, Path(journal_of(place, model)), quiet=arguments.json)
    asked = to_be_evaluated(model, arguments.epsilon, None, arguments.noise or "")
    found, sites = evaluate_over_nodes(options, asked, model, file)
    show(found, sites, place, None, is_seeded=options.noise.seeded, as_json=arguments.json)
    hand_out(options, place)
    _say_who_was_away(folder, number)


def survey(arguments: argparse.Namespace) -> None:
    """Ask the sites for statistics of the plan's columns, by `hedgerow survey`, into a folder of their own.

    Where the plan's label is a time to an event, for Kaplan-Meier curves. The same command goes on with one that was
    cut off.
    """
    from hedgerow.cli import survey as statistics
    from hedgerow.cli.main import build_parser

    folder = folder_of(arguments.study)
    _require_roster(folder)
    plan, place = read_plan(str(folder / PLAN)), str(folder / PLAN)
    number = next(n for n in count(1) if not (folder / f"survey-{n}" / "survey.json").is_file())
    command = ["survey", "--federated", "--epsilon", str(arguments.epsilon), "--delta", str(plan.privacy.delta)]
    command += ["--out", str(folder / f"survey-{number}")]
    command += ["--survival", place] if plan.label.is_survival else ["--schema", place, "--label", plan.label.name]
    if plan.privacy.unit != "record":
        command += ["--unit", plan.privacy.unit, "--max-rows-per-unit", str(plan.privacy.max_rows_per_unit)]
    command += [] if arguments.noise is None else ["--noise", arguments.noise]
    options = _options(folder, arguments)
    command += ["--roster", options.roster, "--identity", options.identity, "--listen", options.listen]
    command += ["--log-format", options.log_format, *(["--json"] if options.quiet else [])]
    command += [] if options.metrics is None else ["--metrics", options.metrics]
    command += [] if options.seed is None else ["--seed", str(options.seed)]
    statistics.run(build_parser().parse_args(command))


def abort(arguments: argparse.Namespace) -> None:
    """End the newest run for good, and tell its sites, whose nodes then wait for the next one."""
    from hedgerow.app import coordinator
    from hedgerow.cli import coordinator as commands

    folder = folder_of(arguments.study)
    last, is_over = newest_run(folder)
    if not last or is_over:
        raise UsageError("study-no-run")
    plan = read_plan(str(run_folder(folder, last) / PLAN))
    ended = coordinator.end_run(_options(folder, arguments), plan, _journal_of(folder, last))
    commands.print_end(*ended, as_json=arguments.json)
    write_private(run_folder(folder, last) / "ended", "")


def newest_model(folder: Path) -> int:
    """The number of the newest run that has made a model; 0 for none."""
    return max((int(place.parent.name[4:]) for place in folder.glob("run-*/model.json")), default=0)


def _require_roster(folder: Path) -> None:
    if not (folder / ROSTER).is_file():
        raise UsageError("study-no-roster")


def _options(folder: Path, arguments: argparse.Namespace) -> CoordinatorOptions:
    """What the coordinator of a study listens with."""
    from hedgerow.app.coordinator import CoordinatorOptions

    with closing(StudyBook(folder)) as book:
        listen = book.fact("listen")
    return CoordinatorOptions(
        identity=str(folder / f"{COORDINATOR}{PRIVATE_SUFFIX}"),
        roster=str(folder / ROSTER),
        listen=listen,
        metrics=arguments.metrics,
        seed=arguments.seed,
        log_format=arguments.log_format,
        quiet=arguments.json,
        ended_by="`hedgerow study abort`",
    )


def show(arguments: argparse.Namespace) -> None:
    """Print the study's parties and runs."""
    with closing(StudyBook(folder_of(arguments.study))) as book:
        keys = _identity(book).public
        parties = [
            {"name": guest.name, "role": guest.role.value, "state": _state(guest), "words": guest.words(keys)}
            for guest in book.guests()
        ]
        last, _ = newest_run(book.folder)
        runs = [
            {"run": number, "folder": str(run_folder(book.folder, number)), "state": _run_state(book.folder, number)}
            for number in range(1, last + 1)
        ]
        words, roster = book.roster_words, book.roster
        fingerprint = "" if roster is None else roster.fingerprint()
        # Of a later roster only those who came with it have words: all others compare the fingerprint.
        shown = words if roster is None or roster.epoch == 1 else "only at those who came last"
        name, address = book.fact("name"), book.fact("address")
    if arguments.json:
        to_compare = {"roster_words": words, "roster_fingerprint": fingerprint}
        print_json({"study": name, "address": address, **to_compare, "parties": parties, "runs": runs})
        return
    facts = [("study", name), ("sites dial", address), ("roster's words", shown or "none yet")]
    print_facts([*facts, ("fingerprint", fingerprint or "none yet")])
    print("\nParties")
    print_facts([(one["name"], f"{one['state']}{', ' + one['words'] if one['words'] else ''}") for one in parties])
    if runs:
        print("\nRuns")
        print_facts([(f"run {run['run']}", f"{run['state']}, {run['folder']}") for run in runs])


def _run_state(folder: Path, number: int) -> str:
    place = run_folder(folder, number)
    if (place / "ended").is_file():
        return "ended"
    if (place / "model.json").is_file():
        return "finished"
    return "paused" if _pause_of(folder, number).exists() else "open"


def _state(guest: Guest) -> str:
    if guest.has_all:
        return "takes part"
    return "confirmed" if guest.is_confirmed else "to be confirmed" if guest.party is not None else "invited"


# A study on one machine -----------------------------------------------------------------------------------------------
# ``hedgerow study demo``, by the commands that its parties type, each in a process. The people are the only part that
# is played: each end is told the words that the other end shows, as in a call.

_STUDY = "demo"


def demo(arguments: argparse.Namespace) -> None:
    """Invite, join, compare, train; leave the study's and the sites' folders behind."""
    from hedgerow.data.datasets import write_rand_hie

    folder = Path(arguments.out)
    if folder.exists():
        raise UsageError("study-exists", folder=folder)
    data = write_rand_hie(folder)
    tables = dict(list(data.train.items())[: arguments.sites])
    text = data.plan.read_text(encoding="utf-8").replace("[privacy]\n", '[privacy]\nnoise = "distributed"\n')
    data.plan.write_text(re.sub(r"(?m)^min_sites = \d+$", f"min_sites = {arguments.sites}", text), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as stack:
        scene = _Scene(folder, stack)
        scene.type("study", "new", _STUDY, "--plan", "plan.toml", "--listen", address)
        scene.type("study", "invite", *tables)
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
    note(f"Go on with it: cd {folder}, and the same commands; `hedgerow study list` says where it stands.")


class _Scene:
    """Types commands in a folder, some of which stay."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._staying: dict[str, subprocess.Popen[bytes]] = {}

    def type(self, *words: str, shows: bool = True) -> str:
        """A command that ends; returns what it printed. Raises EnvironmentFault "demo-command" where it fails."""
        if shows:
            note(f"$ hedgerow {shlex.join(words)}")
        done = subprocess.run(self._command(words), cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentFault("demo-command", command=shlex.join(words), said=done.stderr[-2000:])
        return done.stdout

    def start(self, name: str, *words: str) -> None:
        """A command that stays until the demonstration ends."""
        note(f"$ hedgerow {shlex.join(words)} &")
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            self._command(words), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        self._staying[name] = process
        self._stack.callback(self._end, process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait()

    @staticmethod
    def _command(words: tuple[str, ...]) -> list[str]:
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
        """What a site shows."""
        return self.wait_for(site, r"Your words: ((?:[a-z]+ ){3}[a-z]+)")

    def words_of(self, site: str) -> str:
        """What the coordinator shows for a site."""
        listed: Mapping[str, list[dict[str, str]]] = json.loads(self.type("study", "list", "--json", shows=False))
        return next(party["words"] for party in listed["parties"] if party["name"] == site)
