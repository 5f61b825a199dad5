# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of a study, from one plan and invitations to runs and their history.

What trains, evaluates and reads models is imported where it is needed. The commands for the people of a study, such as
`list` and `confirm`, load neither numba nor scipy.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow import study
from hedgerow.app.backup import RESTORED
from hedgerow.app.inputs import (
    PLAN,
    ROSTER,
    OpenQuestion,
    build_policy,
    is_terminal,
    join_names,
    parse_proposal,
    read_plan,
    read_text,
)
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import name_log, note, print_facts, warn
from hedgerow.app.progress import space_lines
from hedgerow.errors import AggregationError, EnvironmentFault, HedgerowError, UsageError
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import list_foreign_parts
from hedgerow.privacy.events import scope_events
from hedgerow.privacy.rounding import format_cost
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import Farewell
from hedgerow.transport import identities
from hedgerow.transport.connections import allow_many_connections
from hedgerow.transport.grpc_hub import StudyServer
from hedgerow.transport.interface import Address

if TYPE_CHECKING:
    from hedgerow.app.page import Console, PastRun
    from hedgerow.local.training import FederatedEvaluation
    from hedgerow.models.model import Model
    from hedgerow.server.coordinator import RunSession

    Report = Callable[[Model, RunSession, Path], object]

_SECONDS_BETWEEN_LOOKS = 0.3


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What the operator of a study gives.

    Attributes:
        folder: the study's.
        console: [HOST:]PORT of the study's page; None for none.
        new_run: set the journal of an earlier run aside, which stays counted.
        seed, log_format, quiet: as for `CoordinatorOptions`.
    """

    folder: Path
    console: str | None = None
    new_run: bool = False
    seed: int | None = None
    log_format: str = "text"
    quiet: bool = False

    def coordinator(self) -> CoordinatorOptions:
        """Return the options with which the study's coordinator listens."""
        with closing(study.StudyBook(self.folder)) as book:
            listen = book.fact("listen")
        return CoordinatorOptions(
            identity=str(self.folder / f"{study.COORDINATOR}{identities.PRIVATE_SUFFIX}"),
            roster=str(self.folder / ROSTER),
            listen=listen,
            seed=self.seed,
            log_format=self.log_format,
            quiet=self.quiet,
            ended_by="`hedgerow study abort`",
        )


# A study and its parties --------------------------------------------------------------------------------------------


def new(name: str, plan_file: str, listen: str, dialled: str | None = None) -> None:
    """Make a study's folder: the coordinator's keys, the plan, and a book of guests.

    Args:
        listen: where this machine listens, HOST:PORT.
        dialled: where sites dial, if that is another address.
    """
    from hedgerow.app.coordinator import require_masks
    from hedgerow.app.cost import groups_text
    from hedgerow.local.forecast import MIN_GROUP, USUAL_GROUPS

    plan = read_plan(plan_file)
    require_masks(plan)
    place = Address.parse(listen, "--listen")
    address = str(Address.parse(dialled, "--address") if dialled else place)
    if place.is_any and not dialled:
        raise UsageError("study-address", listen=listen)
    folder, draft = Path(identities.check_name(name)), Path(f".{name}.new")
    if folder.exists():
        raise UsageError("exists", code="study-exists", path=folder)
    # What a killed command has left behind is not a study.
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    identity, _, _ = identities.create_identity(draft, study.COORDINATOR, identities.Role.COORDINATOR)
    identities.write_new(draft / PLAN, read_text(plan_file))
    study.StudyBook.create(draft, {"name": name, "listen": listen, "address": address}).close()
    draft.rename(folder)
    print_facts(
        [
            ("study", f"{name}, in the folder {folder}"),
            ("plan", f"{plan.name}, {format_cost(plan.privacy.epsilon, plan.privacy.delta)}"),
            ("groups of sites", groups_text(plan, max(USUAL_GROUPS * MIN_GROUP, plan.federation.min_sites))),
            ("sites dial", address),
            ("fingerprint", identity.public.fingerprint()),
        ]
    )
    note(
        f"Next: `hedgerow study invite SITE ...`. {folder} holds the coordinator's keys: keep it. "
        "`hedgerow study backup FILE` backs up what may be restored."
    )


def find_folder(given: str | None) -> Path:
    """Return a study's folder: the given one, the current one, or the only one below it.

    Raises UsageError "study-folder".
    """
    if given is not None:
        if not (Path(given) / "study.db").is_file():
            raise UsageError("study-folder", folder=given)
        return Path(given)
    here = Path()
    if (here / "study.db").is_file():
        return here
    found = sorted(place.parent for place in here.glob("[!.]*/study.db"))
    if len(found) != 1:
        raise UsageError("study-folder", folder="." if not found else join_names(map(str, found)))
    return found[0]


def read_identity(book: study.StudyBook) -> identities.PrivateIdentity:
    """Read the coordinator's keys."""
    return identities.read_private(book.folder / f"{study.COORDINATOR}{identities.PRIVATE_SUFFIX}")


def _propose_policy(policy: str | None, max_epsilon: float | None, plan: Plan, before: str | None) -> str:
    """Return the policy that a site is asked to confirm, without its data set's name; raise UsageError.

    Args:
        before: the policy of the invitation that this one replaces; it is used if the command names none.
    """
    if policy is not None:
        text = read_text(policy)
    elif before is not None and max_epsilon is None:
        text = before
    else:
        most = plan.privacy.epsilon if max_epsilon is None else max_epsilon
        text = f"max_epsilon = {most}\ndelta = {plan.privacy.delta}\n"
    parse_proposal(build_policy(text, "the data", plan.privacy.noise)).check_plan(plan)
    return text


def invite(
    folder: Path,
    sites: Sequence[str],
    monitors: Sequence[str] = (),
    *,
    max_epsilon: float | None = None,
    policy: str | None = None,
    again: bool = False,
) -> None:
    """Write one invitation for each party.

    Args:
        max_epsilon: what a site is asked to allow over all runs; None for the plan's.
        policy: a file with lines of a policy that sites are to confirm.
        again: write new ones; the old ones of these parties are void.
    """
    with closing(study.StudyBook(folder)) as book:
        plan, identity = read_plan(str(book.folder / PLAN)), read_identity(book)
        given = ((identities.Role.SITE, sites), (identities.Role.MONITOR, monitors))
        parties = [(name, role) for role, names in given for name in names]
        if not parties:
            raise UsageError("usage-missing", missing="A site to be invited (`hedgerow study invite north south`)")
        for name, _ in parties:
            if identities.check_name(name) == study.COORDINATOR:
                cause = "That is the coordinator's own name in every study."
                raise UsageError("invited-already", code="invited-coordinator", name=name, cause=cause, also="")
        # All of them before the first is written: what is refused has invited nobody.
        policies = {
            (name, role): _propose_policy(policy, max_epsilon, plan, book.find_proposal(name) if again else None)
            if role is identities.Role.SITE
            else ""
            for name, role in parties
        }
        for name, role in parties:
            place = book.folder / f"{name}{study.SUFFIX}"
            if place.exists() and not again:
                raise UsageError("invitation-exists", path=place)
            invitation = study.StudyInvitation(
                book.fact("name"), name, role, identity.public, book.fact("address"),
                read_text(str(book.folder / PLAN)), policies[name, role], study.new_secret(),
            )  # fmt: skip
            book.invite(invitation)
            place.unlink(missing_ok=True)
            study.write_private(place, invitation.to_text())
            print(place)
    if sites:
        from hedgerow.client.policy import parse_policy

        asked = {parse_policy(build_policy(text, "the data")).max_epsilon for text in policies.values() if text}
        # Name every limit: a newcomer may be asked for less than earlier sites, and be out of budget before them.
        note(f"Each site is asked to allow epsilon {' or '.join(f'{most:g}' for most in sorted(asked))} over all runs.")
        if plan.privacy.epsilon in asked:
            note("One run of the plan uses that up. --max-epsilon asks for more: for evaluations and further runs.")
        if plan.privacy.noise != "distributed":
            warn(
                f'The plan has noise = "{plan.privacy.noise}", which no invitation grants: each owner has to type the '
                "word, or to bring a policy of their own (`join --policy`) that names it."
            )
        if foreign := list_foreign_parts(plan):
            needed = " and ".join(f"the {part['what']} {part['name']} (module {part['module']})" for part in foreign)
            warn(
                f"The plan needs {needed}, which no invitation loads. "
                "Each owner has to read it, install it, and bring a policy of their own (`join --policy`) with the "
                "line `plugins` that `hedgerow check-method` prints."
            )
    note(
        "Send each file to its party; who uses one first is that party until you compare the words. Then: "
        "`hedgerow study serve`."
    )


def move(folder: Path, new: str, given: str | None = None) -> None:
    """Move a study to another address: where its sites dial, and, if it is `given`, where this machine listens."""
    new = str(Address.parse(new, "ADDRESS"))
    with closing(study.StudyBook(folder)) as book:
        before, listen = book.fact("address"), book.fact("listen")
        # One address for both moves as one.
        listen = given or (new if listen == before else listen)
        Address.parse(listen, "--listen")
        book.move(new, listen)
    note(f"From its next start the coordinator listens on {listen}; new invitations name {new}.")
    note(f"Every site starts `hedgerow join` with --connect {new}. Keys, roster and runs stay as they are.")


def withdraw(folder: Path, name: str) -> None:
    """Take an invitation back, or a party out of the roster: runs that begin from now on are without it."""
    from hedgerow.models.model import write_atomically

    with closing(study.StudyBook(folder)) as book:

        def pin(made: identities.PinnedRoster) -> None:
            # Runs and evaluations that have begun keep their roster.
            last, is_over = newest_run(folder)
            if last and not is_over:
                raise UsageError("study-run-open", number=last)
            for journal in sorted(folder.glob("run-*/*.journal")):
                if _is_carried_out(journal):
                    raise UsageError("study-in-use", journal=journal)
            _require_own_roster(book, made)
            write_atomically(folder / ROSTER, made.to_toml().encode())

        roster = book.withdraw(name, pin)
        (folder / f"{name}{study.SUFFIX}").unlink(missing_ok=True)
    note(f"{name} is not expected any more.")
    if roster is not None:
        note(f"Its keys are trusted no longer. {_new_roster(roster)}")


def _new_roster(roster: identities.PinnedRoster) -> str:
    return (
        f"The roster is a new one, edition {roster.edition}: {roster.fingerprint()}. Read that to the sites, whose "
        "nodes ask their owners at the next run."
    )


def _require_own_roster(book: study.StudyBook, made: identities.PinnedRoster | None = None) -> None:
    """Raise UsageError "study-roster-by-hand" where runs read a roster that the study did not make.

    The study's next one would follow its own, and might trust keys again that somebody has taken out by hand.

    Args:
        made: the next one, which a command that was killed may have written already.
    """
    place, own = book.folder / ROSTER, book.roster
    if own is None or not place.is_file():
        return
    found = identities.read_roster(place)
    # The study's own roster is newer than the file until all newcomers have been sent it.
    if found not in (own, made) and not identities.follows(own, found):
        raise UsageError("study-roster-by-hand", path=place)


def confirm(folder: Path, words: Sequence[str]) -> None:
    """Pin the keys of parties whose words the operator has compared: PARTY=WORDS."""
    with closing(study.StudyBook(folder)) as book:
        _confirm(book, words)


def _confirm(book: study.StudyBook, given: Sequence[str]) -> None:
    coordinator_keys = read_identity(book).public
    for each in given:
        name, equals, words = each.partition("=")
        if not equals:
            expected = 'a party and its words, as in north="apple river stone lamp"'
            raise UsageError("argument", code="usage", name="What is to be confirmed", value=each, expected=expected)
        book.confirm(name, words, coordinator_keys)
        note(f"{name} is confirmed.")


# Enrolment ----------------------------------------------------------------------------------------------------------


def serve(options: StudyOptions, words: Sequence[str], report: Report) -> None:
    """Wait for all parties, have their words compared, send the roster, and carry out the first run.

    Args:
        words: of parties that the operator has compared already.
        report: is given the model.
    """
    name_log(study.COORDINATOR)
    folder = options.folder
    with closing(study.StudyBook(folder)) as book:
        _confirm(book, words)
        are_all_in = all(guest.has_all for guest in book.guests())
    last, is_over = newest_run(folder)
    # A run that is open has the roster with which it began.
    is_receiving = not (folder / ROSTER).is_file() or not (are_all_in or (last and not is_over))
    late = [] if is_receiving else _list_late(folder, last)
    if late:
        note(f"Run {last} is over. Away at its end, and told of it now: {join_names(late)}.")
    is_resting = not late and (is_over or (last > 0 and _pause_file(folder, last).exists()))
    with _open_page(options) if is_receiving or not is_resting else nullcontext() as page:
        if is_receiving:
            with closing(study.StudyBook(folder)) as book:
                _receive(book, page)
        if not is_resting:
            _carry_out(options, max(last, 1), report, page)
            return
    stands, what = ("over", "begins another") if is_over else ("paused", "goes on with it")
    note(f"Run {last} is {stands}: {run_folder(folder, last)}. `hedgerow study run` {what}.")


@contextmanager
def _open_page(options: StudyOptions) -> Iterator[Console | None]:
    """Open the study's page, if one is wanted, before the first run; it shows past runs too."""
    folder = options.folder
    if options.console is None:
        yield None
        return
    # Import here: the page needs an extra.
    from hedgerow.app.page import Console

    with closing(study.StudyBook(folder)) as book:
        name = book.fact("name")
    with Console(options.console, read_plan(str(folder / PLAN))) as page:
        page.say(study=name)
        yield page


def _warn_about_few_sites(book: study.StudyBook, sites: Sequence[str]) -> None:
    """Say before anyone calls anyone that nodes would take part in no run of so few sites."""
    from hedgerow.client.policy import parse_policy

    proposed = [text for text in map(book.find_proposal, sites) if text is not None]
    least = max((parse_policy(build_policy(text, "the data")).min_sites for text in proposed), default=0)
    if len(sites) < least:
        warn(
            f"{len(sites)} site(s) are invited, and the proposed policies take part with {least} or more (min_sites): "
            "their nodes would end as policy-small-cohort. Invite more sites; or invite these `--again`, with a "
            "`--policy` that says fewer, if their owners want to."
        )


def _receive(book: study.StudyBook, page: Console | None) -> None:
    """Serve the parties until all have the roster."""
    from hedgerow.models.model import write_atomically

    identity = read_identity(book)
    guests = book.guests()
    _require_site(guests)
    _require_own_roster(book)
    _warn_about_few_sites(book, [guest.name for guest in guests if guest.role is identities.Role.SITE])
    address = Address.parse(book.fact("listen"), "--listen")
    allow_many_connections()
    # A book for each thread: one that the server writes to while the operator confirms somebody waits for its turn.
    with closing(study.StudyBook(book.folder)) as desk:
        answering = _Answering(study.Reception(identity.public, desk, os.urandom))
        server = StudyServer(identity, address, len(guests), answering)
        try:
            note(f"Listening on {book.fact('listen')} for {join_names(guest.name for guest in guests)}.")
            lines = _Lines(book, identity, page)
            while not lines.look():
                answering.require_well()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        finally:
            server.close()
    roster = book.roster
    if roster is not None:
        write_atomically(book.folder / ROSTER, roster.to_toml().encode())


def _require_site(guests: Sequence[study.Guest]) -> None:
    if not any(guest.role is identities.Role.SITE for guest in guests):
        raise UsageError("usage-missing", missing="A site to be invited (`hedgerow study invite north south`)")


class _Answering:
    """Gives the answers of a reception; what stops this end, a full disk above all, is told to its operator alone."""

    def __init__(self, reception: study.Reception) -> None:
        self._reception = reception
        self._fault: HedgerowError | None = None

    def __call__(self, message: bytes) -> bytes:
        try:
            return self._reception.answer(message).to_bytes()
        except HedgerowError as fault:
            self._fault = fault
            return Farewell.from_refusal(WireRefusal(WireCode.CLOSED)).to_bytes()

    def require_well(self) -> None:
        """Raise the fault of this process that has ended the enrolment, if any."""
        if self._fault is not None:
            raise self._fault


class _Lines:
    """Says what becomes of the guests, and asks the operator about each one's words.

    The question stands beside the loop that serves the parties: it is withdrawn as soon as it was answered elsewhere.
    """

    def __init__(self, book: study.StudyBook, identity: identities.PrivateIdentity, page: Console | None) -> None:
        self._book, self._coordinator, self._page = book, identity.public, page
        self._said = set[str]()
        self._since, self._awaited = time.monotonic(), ""
        self._changed_at = self._told_at = -math.inf
        self._question: OpenQuestion | None = None
        self._asked: study.Guest | None = None
        self._skipped = set[str]()

    def look(self) -> bool:
        """Say what is new, take an answer that was typed, and return whether all parties have the roster."""
        guests = self._book.guests()
        # All of them may be withdrawn meanwhile.
        _require_site(guests)
        unconfirmed = [guest for guest in guests if guest.party is not None and not guest.is_confirmed]
        for guest in unconfirmed:
            self._say(f"{guest.name} has enrolled. Its words: {guest.words(self._coordinator)}")
            if not is_terminal():
                name = guest.name
                self._say(f'Call {name}, and then: hedgerow study confirm {name}="the words that they read"')
        if is_terminal():
            self._ask(guests, unconfirmed)
        # Asked again where it is written: somebody may be invited meanwhile.
        if is_closed := all(guest.is_confirmed for guest in guests) and self._book.close_roster(self._coordinator):
            self._say_roster()
            guests = self._book.guests()
        # Last, so that it never comes before the news from which it follows.
        self._say_who_is_awaited(guests)
        return is_closed and all(guest.has_all for guest in guests)

    def _say_roster(self) -> None:
        """Say that the roster is made; its words, once every party has shown its number."""
        self._say("All parties are confirmed. Each is sent the roster.")
        if words := self._book.roster_words:
            roster = self._book.roster
            is_first = roster is None or roster.edition == 1
            if roster is not None and not is_first:
                self._say(_new_roster(roster))
            self._say(f"The roster's words, the same at every party{'' if is_first else ' that came last'}: {words}")

    def _say_who_is_awaited(self, guests: Sequence[study.Guest]) -> None:
        """Print which parties the study waits for and since when: at changes, and now and then."""
        parties = {
            "to join": [guest.name for guest in guests if guest.party is None],
            "to be confirmed": [guest.name for guest in guests if guest.party is not None and not guest.is_confirmed],
        }
        if not any(parties.values()):
            # The roster's words need a number of everyone: no owner is asked before all have fetched it.
            if lacking := [guest.name for guest in guests if not guest.second]:
                parties["to fetch the roster"] = lacking
            else:
                parties["to approve the roster"] = [guest.name for guest in guests if not guest.has_all]
        awaited = ", ".join(f"{join_names(names)} {what}" for what, names in parties.items() if names)
        now = time.monotonic()
        text = f"waiting for {awaited} ({now - self._since:,.0f} s so far, until they come)" if awaited else ""
        if self._page is not None:
            self._page.show_parties([(guest.name, describe_state(guest), guest.has_all) for guest in guests], text)
        if awaited != self._awaited:
            self._awaited, self._changed_at, self._told_at = awaited, now, -math.inf
        if text and now - self._told_at >= space_lines(now - self._changed_at):
            self._told_at = now
            self._note(f"{text[:1].upper()}{text[1:]}.")

    def _ask(self, guests: Sequence[study.Guest], unconfirmed: Sequence[study.Guest]) -> None:
        """Ask about one party that is not confirmed; withdraw a question that another command has answered."""
        # Compare invitations, not only names: `study confirm`, `invite --again` and `withdraw` may run meanwhile.
        open_questions = {(guest.name, guest.invitation) for guest in unconfirmed}
        asked = self._asked
        if asked is not None and (asked.name, asked.invitation) not in open_questions:
            now = next((guest for guest in guests if guest.name == asked.name), None)
            became = "is confirmed" if now is not None and now.is_confirmed else "is not to be confirmed any more"
            self._note(f"{asked.name} {became}, by another command: the question about it is withdrawn.")
            self._asked = self._question = asked = None
        if asked is None:
            # After an empty line the next party is asked about; after the last, all of them again.
            names = {guest.name for guest in unconfirmed}
            if names <= self._skipped:
                self._skipped.clear()
            asked = next((guest for guest in unconfirmed if guest.name not in self._skipped), None)
            if asked is None:
                return
            later = "Enter asks later" if len(names) == 1 else "Enter asks about the next party first"
            self._asked = asked
            self._question = OpenQuestion(f"Call {asked.name}. Which four words do they read to you? ({later})")
        if self._question is None or (said := self._question.poll(0.0)) is None:
            return
        self._asked = self._question = None
        if said:
            self._take(asked, said, guests)
        else:
            self._skipped.add(asked.name)

    def _take(self, guest: study.Guest, said: str, guests: Sequence[study.Guest]) -> None:
        """Confirm a party by the words that were typed, or say whose words they are."""
        owners = [one.name for one in guests if study.are_same_words(said, one.words(self._coordinator) or "-")]
        now = self._book.guest(guest.name)
        if now is None or now.is_confirmed or now.invitation != guest.invitation:
            # Settled by another command since the parties were read: the next look says so.
            return
        try:
            self._book.confirm(guest.name, said, self._coordinator)
            self._note(f"{guest.name} is confirmed.")
        except UsageError as fault:
            whose = f" They are the words of {join_names(owners)}." if owners else ""
            self._note(f"{fault.what}{whose} {fault.remedy}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)

    def _note(self, text: str) -> None:
        if self._question is not None:
            self._question.step_aside()
        note(text)


# Runs ---------------------------------------------------------------------------------------------------------------


def run_folder(folder: Path, number: int) -> Path:
    """Return the folder of a run's files."""
    return folder / f"run-{number}"


def newest_run(folder: Path) -> tuple[int, bool]:
    """Return the number of the last run (0 for none), and whether it has a model or was ended."""
    numbers = [int(place.name[4:]) for place in folder.glob("run-*") if place.name[4:].isdecimal()]
    last = max(numbers, default=0)
    place = run_folder(folder, last)
    return last, last > 0 and ((place / "model.json").is_file() or (place / "ended").is_file())


def _carry_out(options: StudyOptions, number: int, report: Report, page: Console | None) -> None:
    """Begin a run, or go on with it, and hand its model out."""
    from hedgerow.app.coordinator import ModelFile, hand_out, train_over_nodes

    folder = options.folder
    place = run_folder(folder, number)
    place.mkdir(mode=0o700, exist_ok=True)
    plan = place / PLAN
    if not plan.exists():
        identities.write_new(plan, read_text(str(folder / PLAN)))
    if page is not None:
        page.show_history(past_runs(folder, number), read_plan(str(plan)))
        page.show_plan(read_plan(str(plan)))
    try:
        journal = _name_journal(folder, number)
        file = ModelFile(
            place / "model.json", None, journal, is_new=options.new_run, quiet=options.quiet,
            agreed=lambda: _take_up_plan(folder, plan),
        )  # fmt: skip
        coordinator = options.coordinator()
        report(*train_over_nodes(coordinator, read_plan(str(plan)), file, page), file.path)
        hand_out(coordinator, file.path, only_late=True)
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


def _take_up_plan(folder: Path, plan: Path) -> None:
    """Make the plan of a run the study's, for further runs and invitations: enough sites have agreed to it."""
    from hedgerow.models.model import write_atomically

    if (agreed := read_text(str(plan))) != read_text(str(folder / PLAN)):
        write_atomically(folder / PLAN, agreed.encode())


def _say_who_was_away(folder: Path, number: int) -> None:
    if late := _list_late(folder, number):
        note(f"Not by {join_names(late)}: once they are back, `hedgerow study serve` gives it to them.")


def _list_late(folder: Path, number: int) -> list[str]:
    """Return the sites that have not taken the model of a run yet, if the run has one."""
    from hedgerow.app import coordinator

    model = run_folder(folder, number) / "model.json"
    return sorted(coordinator.late(model, identities.read_roster(folder / ROSTER))) if model.is_file() else []


def _pause_file(folder: Path, number: int) -> Path:
    from hedgerow.app import coordinator

    return coordinator.pause_file(_name_journal(folder, number))


def _name_journal(folder: Path, number: int) -> Path:
    return run_folder(folder, number) / "model.json.journal"


def past_runs(folder: Path, before: int) -> list[PastRun]:
    """Return the runs before a number that have ended or have made a model, with their public facts."""
    from hedgerow.app.evaluation import journal_file
    from hedgerow.app.page import PastRun
    from hedgerow.models.model import Model
    from hedgerow.privacy.ledger import Ledger
    from hedgerow.server.journal import find_journals, read_runs

    found = []
    for number in range(1, before):
        place, state = run_folder(folder, number), run_state(folder, number)
        if state == "finished":
            model = Model.load(place / "model.json")
            plan, ledger, n_before, remark = model.plan, model.ledger, len(model.plan.prepared), ""
            journals = find_journals(Path(journal_file(place / "model.json", model)))
        elif state == "ended":
            plan, ledger, n_before, remark = read_plan(str(place / PLAN)), Ledger(), 0, "no model"
            journals = find_journals(_name_journal(folder, number))
        else:
            continue
        for journal in journals:
            try:
                runs = read_runs([journal], ledger)
            except EnvironmentFault as fault:
                if fault.code != "database-locked":
                    raise
                # This is only shown: an account reads every journal, or is refused.
                runs, remark = {}, "another run is under way"
            for name, releases in runs.items():
                ledger = ledger.with_run(name, releases, n_before)
        # A filter's budget is spent once in each run.
        events = scope_events((release.event for release in ledger.releases[n_before:]), str(number))
        found.append(PastRun(f"run {number}", state, plan, tuple(events), remark))
    return found


def run(options: StudyOptions, plan: str | None, report: Report) -> None:
    """Go on with the newest run, or begin another one.

    Args:
        plan: the file of a new plan, from this run on.
        report: is given the model.
    """
    from hedgerow.app.coordinator import require_masks
    from hedgerow.models.model import write_atomically

    name_log(study.COORDINATOR)
    folder = options.folder
    require_roster(folder)
    last, is_over = newest_run(folder)
    if plan is not None:
        require_masks(read_plan(plan))
        # The same command again goes on with the run that it has begun.
        begun = run_folder(folder, last) / PLAN
        if last and not is_over and not (begun.exists() and read_text(str(begun)) == read_text(plan)):
            raise UsageError("study-run-open", number=last)
        note(f"Send {plan} to all sites; each takes it up by `hedgerow join INVITATION --plan FILE ...`.")
    number = last + 1 if is_over or not last else last
    own = run_folder(folder, number) / PLAN
    if plan is not None and not own.exists():
        # The study's own plan stays as it is until enough sites have taken this one up.
        own.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(own, read_text(plan).encode())
    _pause_file(folder, number).unlink(missing_ok=True)
    with _open_page(options) as page:
        _carry_out(options, number, report, page)


def pause(folder: Path) -> None:
    """Let the newest run rest between two rounds until `study run`; waits until it does."""
    last, is_over = newest_run(folder)
    if not last or is_over:
        raise UsageError("study-no-run", code="study-no-run", what="run")
    _pause_file(folder, last).touch(mode=0o600)
    while _is_carried_out(_name_journal(folder, last)):
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    if newest_run(folder)[1]:
        _pause_file(folder, last).unlink(missing_ok=True)
        note(f"Run {last} was over before it could be paused.")
        return
    note(f"Run {last} is paused; its sites wait. `hedgerow study run` goes on with it, `hedgerow study abort` ends it.")


def _is_carried_out(journal: Path) -> bool:
    """Return whether a coordinator works with the run."""
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


def evaluate(
    options: StudyOptions,
    epsilon: float,
    noise: str,
    by: Sequence[str],
    report: Callable[[FederatedEvaluation, list[str], Path], object],
) -> None:
    """Evaluate the newest run's model over the rows that the sites hold out, and hand it out.

    Args:
        noise, by: as for `EvaluationTask`.
        report: is given what was found, and the model's file.
    """
    from hedgerow.app.coordinator import ModelFile, evaluate_over_nodes, hand_out
    from hedgerow.app.evaluation import journal_file, prepare_evaluation
    from hedgerow.models.model import Model

    folder = options.folder
    require_roster(folder)
    number = max((int(place.parent.name[4:]) for place in folder.glob("run-*/model.json")), default=0)
    place = run_folder(folder, number) / "model.json"
    if not place.is_file():
        raise UsageError("study-no-run", code="study-no-run", what="run")
    if (mark := place.with_name(RESTORED)).exists():
        raise UsageError("model-restored", path=place, mark=mark)
    model, coordinator = Model.load(place), options.coordinator()
    journal = Path(journal_file(place, model))
    file = ModelFile(place, model, journal, is_new=options.new_run, quiet=options.quiet)
    sites = [site.name for site in identities.read_roster(Path(coordinator.roster)).sites]
    asked = prepare_evaluation(model, epsilon, None, noise, by, sites)
    report(*evaluate_over_nodes(coordinator, asked, model, file), place)
    hand_out(coordinator, place)
    _say_who_was_away(folder, number)


def abort(options: StudyOptions) -> tuple[bytes, list[str], int]:
    """End the newest run for good, and tell its sites, whose nodes then wait for the next one; returns as `end_run`."""
    from hedgerow.app.coordinator import end_run

    folder = options.folder
    last, is_over = newest_run(folder)
    if not last or is_over:
        raise UsageError("study-no-run", code="study-no-run", what="run")
    plan = read_plan(str(run_folder(folder, last) / PLAN))
    ended = end_run(options.coordinator(), plan, _name_journal(folder, last))
    study.write_private(run_folder(folder, last) / "ended", "")
    return ended


def require_roster(folder: Path) -> None:
    """Raise UsageError "study-no-roster" before all parties are enrolled."""
    if not (folder / ROSTER).is_file():
        raise UsageError("study-no-run", code="study-no-roster", what="roster")


def run_state(folder: Path, number: int) -> str:
    """Return a run's state in a word."""
    place = run_folder(folder, number)
    if (place / "ended").is_file():
        return "ended"
    if (place / "model.json").is_file():
        return "finished"
    return "paused" if _pause_file(folder, number).exists() else "open"


def describe_state(guest: study.Guest) -> str:
    """Return a party's progress in its enrolment, in words."""
    if guest.has_all:
        return "takes part"
    if guest.second:
        return "has the roster"
    return "confirmed" if guest.is_confirmed else "to be confirmed" if guest.party is not None else "invited"
