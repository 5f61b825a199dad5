# SPDX-License-Identifier: Apache-2.0
"""A site's way from an invitation to a run, and a monitor's.

What reads rows and takes part in runs is imported where it is needed, as in `hedgerow.app.study`.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from contextlib import closing
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.app.inputs import (
    PLAN,
    POLICY,
    ROSTER,
    adapt_table,
    build_policy,
    is_terminal,
    join_names,
    parse_proposal,
    prompt,
    prompt_while,
    read_max_rows,
    read_policy,
    read_text,
    says_yes,
)
from hedgerow.app.options import JoinOptions, NodeOptions, OwnerOptions
from hedgerow.app.output import name_log, note, print_facts, warn, wrap_text
from hedgerow.app.progress import WaitLine
from hedgerow.codec import Encoded
from hedgerow.errors import PolicyRefusal, UsageError, mark_private
from hedgerow.plan.fields import escape_for_terminal, read_sentences, read_toml
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.plugins import UNCOVERED
from hedgerow.protocol.refusals import WireCode, WireRefusal
from hedgerow.protocol.stream import Farewell, Standing, read_first
from hedgerow.secagg.guarantees import MIN_COHORT
from hedgerow.study import Applicant, Notebook, StudyInvitation, WordInputs, are_same_words
from hedgerow.transport.grpc_link import ask
from hedgerow.transport.identities import (
    PRIVATE_SUFFIX,
    PinnedRoster,
    PrivateIdentity,
    Role,
    create_identity,
    read_private,
)
from hedgerow.transport.interface import Address

if TYPE_CHECKING:
    from hedgerow.app.page import SitePage
    from hedgerow.client.policy import Policy
    from hedgerow.data.fit import TableFit

_SECONDS_BETWEEN_QUESTIONS = 1.0
_MAX_PAUSE = 10.0
_SERVES_NODES = {WireCode.VERSION_MISMATCH, WireCode.MALFORMED}
"""How a coordinator that enrols no one any more answers a party's certificate and question: the run has begun."""


_NOT_NOW = Farewell.from_refusal(WireRefusal(WireCode.CLOSED)).to_bytes()
"""What a coordinator says that is about to end, for want of room on its disk for instance: it will be started again."""


def join(options: JoinOptions, invitation: StudyInvitation, page: SitePage | None = None) -> NodeOptions:
    """Agree, enrol and have the words compared; return the options for taking part or watching.

    Args:
        invitation: the invitation that the options name.
        page: the page of a site; None for none.

    Raises:
        PolicyRefusal: the owner does not agree; WireRefusal, RemoteProtocolError, UsageError: there is no roster.
    """
    name_log(invitation.party)
    options = replace(options, connect=options.connect or invitation.address)
    address = str(Address.parse(options.connect, "--connect"))
    folder = options.party_folder(invitation)
    if invitation.role is Role.SITE and options.data is None and options.held_out is None:
        raise UsageError("usage-missing", missing="A table to train on (DATA), or one to evaluate on (--held-out),")
    _make_room(invitation, folder)
    given = options.policy or str(folder / POLICY)
    has_policy = options.policy is not None or Path(given).exists()
    if invitation.role is Role.SITE and options.data_set is not None and has_policy:
        # A policy may count these rows for another name.
        counted = read_policy(given).data_set
        if counted != options.data_set:
            raise UsageError("data-set-beside-policy", data_set=options.data_set, policy=given, counted=counted)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if options.policy is not None:
        # The owner's own plug-ins, which the plan may need to be read.
        read_policy(options.policy)
    _join(options, invitation, folder, page)
    policy = options.policy or str(folder / POLICY)
    shared: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(OwnerOptions)}
    if invitation.role is Role.SITE:
        data_set = read_policy(policy).data_set
        shared["budget"] = str(_find_book(options.invitation, invitation.party, options.budget, data_set))
    return NodeOptions(
        **shared,
        identity=str(folder / f"{invitation.party}{PRIVATE_SUFFIX}"),
        roster=str(folder / ROSTER),
        policy=policy,
        connect=address,
        plan=str(folder / PLAN),
        state=str(folder / "state"),
        out=str(folder),
    )


def _join(options: JoinOptions, invitation: StudyInvitation, folder: Path, page: SitePage | None) -> None:
    """Go from the invitation to the roster: agree, enrol and have the words compared."""
    wanted = invitation
    if options.plan is not None:
        # Check the plan before anything is asked or sent, so that a fault in it keeps nobody waiting.
        wanted = replace(invitation, plan=read_text(options.plan))
        parse_plan(wanted.plan)
    with closing(Notebook(folder / "enrolment.db")) as notes:
        kept = notes.read("invitation")
        identity = _make_identity(folder, invitation)
        if kept is None:
            _agree(options, wanted, folder, page)
            notes.keep(invitation=invitation.digest())
        elif invitation.role is Role.SITE:
            counted = read_policy(options.policy or str(folder / POLICY)).data_set
            note(f"Going on as agreed. What these rows cost is counted for {escape_for_terminal(counted)!r}.")
        if kept is not None and options.adapter is not None:
            # Its owner has seen the log of the node, which reads the table by the policy.
            _adapt(options.adapter, options.policy or str(folder / POLICY), is_own=options.policy is not None)
        if notes.read("settled") is None:
            _enrol(options, invitation, folder, identity, notes, page)
        if options.plan is not None and wanted.plan != read_text(str(folder / PLAN)):
            _agree(options, wanted, folder, page)


def _make_room(invitation: StudyInvitation, folder: Path) -> None:
    """Set aside what an earlier invitation has left; raises UsageError where it has led to a roster."""
    if not (folder / "enrolment.db").is_file():
        return
    with closing(Notebook(folder / "enrolment.db")) as notes:
        if notes.read("invitation") in (None, invitation.digest()):
            return
    if (folder / ROSTER).exists():
        raise UsageError("invitation-replaced", folder=folder)
    places = (folder.with_name(f"{folder.name}.{number}") for number in count(1))
    place = next(place for place in places if not place.exists())
    folder.rename(place)
    note(f"{folder} belongs to another invitation, which came to nothing. It is set aside as {place}.")


def _make_identity(folder: Path, invitation: StudyInvitation) -> PrivateIdentity:
    """Return this party's keys; make them if they do not exist."""
    private = folder / f"{invitation.party}{PRIVATE_SUFFIX}"
    return read_private(private) if private.exists() else create_identity(folder, invitation.party, invitation.role)[0]


# What the owner agrees to -------------------------------------------------------------------------------------------


def _agree(options: JoinOptions, invitation: StudyInvitation, folder: Path, page: SitePage | None) -> None:
    """Show what the study asks for, ask once, and write plan and policy.

    Raises PolicyRefusal "not-agreed".
    """
    from hedgerow.app.fit import ask_about_left_out_rows, is_mostly_left_out
    from hedgerow.models.model import write_atomically

    plan = parse_plan(invitation.plan)
    print_facts(
        [
            ("study", invitation.study),
            ("you are", f"{invitation.party} ({invitation.role.value})"),
            ("coordinator", f"{options.connect}, {invitation.coordinator.fingerprint()}"),
        ]
    )
    if page is not None:
        page.show_cost(plan)
        page.wait_for("Your agreement is awaited", "The terminal shows plan, table and policy, and asks.")
    # Files that are not agreed to yet have other names, so that a refused policy is not used for the next invitation.
    proposed = {folder / PLAN: folder / f"proposed-{PLAN}"}
    write_atomically(proposed[folder / PLAN], invitation.plan.encode())
    found = None
    if invitation.role is Role.SITE:
        policy, found = _show_site(options, invitation, plan, folder)
        proposed |= {} if policy is None else {folder / POLICY: policy}
    if options.yes and found is not None and is_mostly_left_out(found):
        # With --yes nobody is asked. Joining must not depend on the rows, or its outcome would reveal something about
        # them.
        warn(mark_private(f"This site's table: {found.rows.text()} The site takes part all the same."))
    if not options.yes:
        if not is_terminal():
            raise UsageError("usage-missing", missing="A terminal to ask at whether this site takes part, or --yes,")
        if found is not None:
            ask_about_left_out_rows("This site's table", found)
        by = ", by this policy" if invitation.role is Role.SITE else ""
        if not says_yes(f"Take part in this study{by}?"):
            raise PolicyRefusal("not-agreed")
    for place, draft in proposed.items():
        draft.replace(place)


def _show_site(
    options: JoinOptions, invitation: StudyInvitation, plan: Plan, folder: Path
) -> tuple[Path | None, TableFit]:
    """Show a site its cost, policy and table check; return the policy to write, if any, and the check."""
    from hedgerow.app.cost import show_cost
    from hedgerow.app.fit import show_fit
    from hedgerow.app.schema import write_beside
    from hedgerow.data.adapters import PLAIN
    from hedgerow.data.sources import file_path, is_url
    from hedgerow.local.forecast import forecast
    from hedgerow.models.model import write_atomically

    proposed = None
    print()
    show_cost(plan, forecast(plan), max(MIN_COHORT, plan.federation.min_sites))
    print()
    table, kept, draft = options.data or options.held_out or "", folder / POLICY, folder / f"proposed-{POLICY}"
    own = options.policy or str(kept)
    # An existing policy may have been changed by its owner, so it stays.
    if options.policy is None and not kept.exists():
        # Unless its owner says so, the budget of a table is counted for the file's name.
        data_set = options.data_set or Path(file_path(table)).name.partition(".")[0]
        if options.data_set is None:
            if is_url(table):
                raise UsageError("usage-missing", missing="--data-set, a name to count the rows of a database by,")
            _find_book(options.invitation, invitation.party, options.budget, data_set, is_named=False)
        text = build_policy(invitation.policy, data_set, plan.privacy.noise)
        _require_trust(parse_proposal(text), asks=not options.yes)
        write_atomically(draft, text.encode())
        write_beside(draft, "policy")
        proposed, own = draft, str(draft)
    if options.adapter is not None:
        _adapt(options.adapter, own, is_own=options.policy is not None)
    policy, text = read_policy(own), read_text(own)
    found = show_fit(plan, adapt_table(table, own if policy.data != PLAIN else None), table)
    policy.check_plan(plan)
    title = "Your policy, which your node enforces whatever the coordinator asks for"
    print(f"\n{wrap_text(title, hanging=0)}\n")
    print_facts(_list_rules(text))
    if proposed is not None and (wider := policy.beyond_defaults(plan)):
        warn(f"This policy allows more, or tells more, than one that says nothing of it: {'; '.join(wider)}.")
    place = _find_book(options.invitation, invitation.party, options.budget, policy.data_set)
    title = f"What the rows of {escape_for_terminal(policy.data_set)} have cost, in all studies whose book is {place}"
    print(f"\n{wrap_text(title, hanging=0)}\n")
    print_facts(_list_spending(place, plan if options.data is not None else None, policy))
    return proposed, found


_TRUST = {
    "server": "The coordinator would add the noise, and see exact sums over all sites: yours, if the others are its.",
    "local": "Every record would have noise of its own, in which shows how many rows this site has.",
}


def _require_trust(proposed: Policy, *, asks: bool) -> None:
    """Make the owner type each noise mode that needs more trust.

    Raises PolicyRefusal: "policy-noise" with --yes, which grants none of them; "not-agreed" for other words.
    """
    from hedgerow.client.policy import noise_refusal

    for noise, what in _TRUST.items():
        if noise not in (*proposed.noise, *proposed.evaluation_noise):
            continue
        if not asks:
            raise noise_refusal(f"The invitation asks for {noise} noise, which --yes does not grant", noise, "noise")
        if is_terminal():
            note(what)
            if prompt(f"Type {noise} to allow it:").lower() != noise:
                raise PolicyRefusal("not-agreed")


def _list_spending(place: Path, plan: Plan | None, policy: Policy) -> list[tuple[str, str]]:
    """List the epsilon spent of the policy's budget, and the total with one run of this plan."""
    from hedgerow.app.owner import format_budget
    from hedgerow.client.budget import RESERVED, BudgetBook, compose_epsilon
    from hedgerow.methods.tasks import TrainingTask

    events = [] if plan is None else TrainingTask(plan).schedule.events
    spent, total, is_reserved = 0.0, compose_epsilon(events, policy.delta), False
    # Do not create a book only to look into it.
    if place.is_file():
        with closing(BudgetBook(place)) as book:
            is_reserved = any(line.status == RESERVED for line in book.lines(policy.data_set))
            spent, total = (book.spent(policy.data_set, policy.delta, more) for more in ([], events))
    facts = [("spent, or reserved" if is_reserved else "spent", format_budget(spent, policy.max_epsilon, policy.delta))]
    if plan is not None:
        refused = "; your node would refuse the run (policy-over-budget)" if total > policy.max_epsilon else ""
        facts.append(("with this run", format_budget(total, policy.max_epsilon, policy.delta) + refused))
    return facts


_UNSAID = {
    "features": "all", "labels": "all", "query_kinds": "all", "unit": "any", "plans": "the one that you agree to",
    "noise": "distributed", "evaluation_noise": "distributed", "coordinators": "the roster's",
}  # fmt: skip
"""Values that a policy's lines have if they are left out."""


def _list_rules(text: str) -> list[tuple[str, str]]:
    """List every rule of a policy with its value and meaning; the budget comes last."""
    from hedgerow.client.policy import Policy, parse_policy

    meanings = read_sentences(Policy)

    content = vars(parse_policy(text)) | {"data": read_toml(text).get("data", {})}
    del content["version"]
    names = sorted(content, key=lambda name: name in ("delta", "max_epsilon"))
    lines = [(name, *line) for name in names for line in _describe_rule(name, content[name])]
    # The half of the sentence in docs/fields.md that says what the line is for.
    return [(shown, f"{said} ({re.split(r'[;.]', meanings[name])[0]})") for name, shown, said in lines]


def _describe_rule(name: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [line for inner, each in value.items() for line in _describe_rule(f"{name}.{inner}", each)]
    every = value if isinstance(value, list | tuple) else [value]
    said = [escape_for_terminal(str(each)) for each in every if each != ""]
    if name == "plugins" and said:
        said.append(f"({UNCOVERED})")
    # List every value: a hidden one would be allowed all the same.
    return [(escape_for_terminal(name), ", ".join(said) or _UNSAID.get(name, "none"))]


def _adapt(adapter: str, own: str, *, is_own: bool) -> None:
    """Add the site's way of writing its table to a policy; raise UsageError if that is set already."""
    from hedgerow.client.policy import parse_policy
    from hedgerow.data.adapters import PLAIN, read_adapter
    from hedgerow.models.model import write_atomically

    data = read_policy(own).data
    if data == read_adapter(adapter):
        return
    if is_own or data != PLAIN:
        raise UsageError("adapter-beside-policy", policy=own)
    text = f"{read_text(own)}\n{read_text(adapter)}"
    parse_policy(text)
    write_atomically(Path(own), text.encode())


# Enrolment ----------------------------------------------------------------------------------------------------------


def _ends(invitation: StudyInvitation, identity: PrivateIdentity) -> WordInputs:
    return WordInputs(invitation.digest(), invitation.secret, invitation.coordinator, identity.public)


def confirm(invitation: StudyInvitation, folder: Path, said: str) -> None:
    """Take note that the operator has read these words; raises UsageError."""
    if not (folder / "enrolment.db").is_file():
        raise UsageError("not-enrolled", name=invitation.party)
    with closing(Notebook(folder / "enrolment.db")) as notes:
        if notes.read("invitation") != invitation.digest() or notes.read("challenge") is None:
            raise UsageError("not-enrolled", name=invitation.party)
        identity = _make_identity(folder, invitation)
        applicant = Applicant(_ends(invitation, identity), identity, notes, os.urandom)
        if not are_same_words(said, applicant.words):
            raise UsageError("words-differ", name=invitation.party)
        notes.exchange(confirmed=applicant.words.encode())
    note("The words are confirmed. A `hedgerow join` that waits for them goes on by itself.")


def _enrol(
    options: JoinOptions,
    invitation: StudyInvitation,
    folder: Path,
    identity: PrivateIdentity,
    notes: Notebook,
    page: SitePage | None = None,
) -> None:
    """Enrol this party, from the first message to the roster.

    Raises WireRefusal, UsageError and RemoteProtocolError.
    """
    from hedgerow.models.model import write_atomically

    def wait_for(phase: str, waiting: str) -> None:
        if page is not None:
            page.wait_for(phase, waiting)

    wait_for("Enrolling", "Waiting for the coordinator.")
    if invitation.role is Role.SITE and notes.read("max_rows") is None:
        notes.keep(max_rows=_ask_most_rows(options.max_rows, asks=not options.yes).to_bytes(8, "big"))
    applicant = Applicant(_ends(invitation, identity), identity, notes, os.urandom)
    line = _DoorLine(invitation, options.connect)
    if applicant.roster is None:
        opening = applicant.opening(line.ask(applicant.knock()))
        read_first(Standing, line.ask(opening))
        note(f"Your words: {applicant.words}")
        where = [] if options.folder is None else ["--folder", options.folder]
        command = shlex.join(["hedgerow", "join", options.invitation, *where, "--confirm"])
        wait_for(f"Your words: {applicant.words}", f"{_call(invitation)} Then answer at the terminal.")
        _compare(invitation, notes, applicant.words, command)
    roster: PinnedRoster | None = None
    # Whom the coordinator withdraws meanwhile is not in the next one, which the owner is shown as well.
    while roster is None or applicant.roster != roster:
        line_of_wait = None
        if applicant.roster is None:
            waiting = "Waiting for the other parties, and for the coordinator to confirm all of them"
            line_of_wait = WaitLine(waiting)
            wait_for("Enrolled", f"{waiting}.")
        while (roster := applicant.roster) is None:
            before = applicant.asking()
            applicant.take(line.ask(before))
            if line_of_wait is not None:
                line_of_wait.look()
            if applicant.asking() == before:
                time.sleep(_SECONDS_BETWEEN_QUESTIONS)
        wait_for(f"The roster's words: {applicant.roster_words}", "The terminal shows who is in it, and asks.")
        _require_company(roster, invitation.party, applicant.roster_words, options.expect, asks=not options.yes)
        try:
            # The coordinator waits until it has heard this from everyone. A connection that broke says nothing: it is
            # asked again, with the certificate that is wanted once the run has begun.
            applicant.take(_DoorLine(invitation, options.connect, identity).ask(applicant.asking()))
        except WireRefusal as refusal:
            if refusal.wire_code not in _SERVES_NODES:
                raise
    write_atomically(folder / ROSTER, roster.to_toml().encode())
    notes.keep(settled=b"1")


def _ask_most_rows(given: str | None, *, asks: bool) -> int:
    """Ask for a public upper bound on this site's rows; return 0 for none.

    It is never read off the table.
    """
    if given is not None:
        return read_max_rows(given, given)
    if not is_terminal() or not asks:
        return 0
    note("How many rows will this site use at most? It bounds what a site can do to the model.")
    while said := prompt("A round number, for everybody sees it, or nothing to say none:"):
        try:
            return read_max_rows(said, said.replace(",", ""))
        except UsageError as fault:
            note(str(fault))
    return 0


def _require_company(roster: PinnedRoster, own: str, words: str, expect: str | None, *, asks: bool) -> None:
    """Show the roster and ask for confirmation; only a person can tell whether the sites are right.

    Raises PolicyRefusal "roster-unexpected"; UsageError if nobody can be asked.
    """
    watch = f"; {len(roster.monitors)} more may watch public numbers" if roster.monitors else ""
    note(f"The roster has {len(roster.sites)} sites{watch}:")
    for party in (*roster.sites, *roster.monitors):
        you = " (you)" if party.name == own else ""
        most = roster.find_max_rows(party.name)
        rows = f", at most {most:,} rows" if most else ""
        note(f"{party.role.value} {party.name}{you}: {party.fingerprint()}{rows}")
    if words:
        note(f"The roster's words, the same at every party: {words}")
    if roster.edition > 1:
        note(f"Compare its fingerprint with those who were there before: {roster.fingerprint()}")
    found = {site.name for site in roster.sites} - {own}
    if expect is not None:
        expected = {name.strip() for name in expect.split(",")} - {own}
        if found != expected:
            raise PolicyRefusal("roster-unexpected", found=join_names(sorted(found)), why="--expect names others")
    if not asks:
        if expect is None:
            warn("Nobody was asked whether these are the right sites: --expect NAME,NAME refuses a roster of others.")
        return
    if not is_terminal():
        raise UsageError("usage-missing", missing="A terminal to ask at whether this site takes part, or --yes,")
    note("A coordinator can run sites of its own under any name: be sure of people, not of names.")
    if not says_yes("Do you know all of these sites, and take part with them?"):
        why = "the owner does not know all of them"
        raise PolicyRefusal("roster-unexpected", found=join_names(sorted(found)), why=why)


def _compare(invitation: StudyInvitation, notes: Notebook, words: str, command: str) -> None:
    """Wait until a person enters the words of the other end, and they agree."""

    def is_confirmed() -> bool:
        # Compare with these very words: other keys, or another answer of the coordinator, give other words.
        return notes.read("confirmed") == words.encode()

    if is_confirmed():
        return
    note(_call(invitation))
    if is_terminal():
        while not is_confirmed():
            said = prompt_while("Which four words do they read to you?", lambda: not is_confirmed())
            if said is None:
                note("The words were confirmed by another command, so nothing is asked here any more.")
            elif are_same_words(said, words):
                notes.exchange(confirmed=words.encode())
            elif said:
                fault = UsageError("words-differ", name=invitation.party)
                note(f"{fault.what} {fault.remedy}")
        return
    note(f'Once they are the same: {command} "the words that they read to you"')
    while not is_confirmed():
        time.sleep(_SECONDS_BETWEEN_QUESTIONS / 2)


def _call(invitation: StudyInvitation) -> str:
    return f"Call the operator of {invitation.study} at a number that you knew before. Each reads the other the words."


class _DoorLine:
    """A line to the coordinator: asks it, and asks again while it cannot be reached.

    Args:
        invitation: names the keys that the coordinator must have.
        address: the address to dial, which needs no trust.
        identity: the identity of the party that asks, if the coordinator wants its certificate.
    """

    def __init__(self, invitation: StudyInvitation, address: str, identity: PrivateIdentity | None = None) -> None:
        self._coordinator, self._address, self._identity = invitation.coordinator, address, identity
        self._said = ""

    def ask(self, message: Encoded) -> bytes:
        """Send a message and return the answer, which is not parsed yet; raise WireRefusal."""
        pause = _SECONDS_BETWEEN_QUESTIONS
        while True:
            try:
                answer = ask(self._address, self._coordinator, message.to_bytes(), self._identity)
                if answer == _NOT_NOW:
                    raise WireRefusal(WireCode.CLOSED)
                return answer
            except WireRefusal as refusal:
                if refusal.is_final or refusal.wire_code in (WireCode.WRONG_COORDINATOR, WireCode.MALFORMED):
                    raise
                if refusal.code != self._said:
                    self._said = refusal.code
                    said = f"{self._address}: {refusal.what} {refusal.cause} {refusal.remedy}"
                    note(f"{said} This end tries again. ({refusal.code})", level="WARNING")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)


# The book ----------------------------------------------------------------------------------------------------------


def _find_book(invitation: str, party: str, budget: str | None, data_set: str, *, is_named: bool = True) -> Path:
    """Return this party's budget book, unless another book has these rows.

    The coordinator chooses a party's name: a site that is invited again under another one would begin a new account for
    the same rows. So would a table that was exported again, with its date in the name.

    Raises:
        UsageError: "data-set-new" if the owner has not named the data set (`is_named`), and this party's book or, if
            there is none, the others here have other names; "budget-elsewhere" if another party's book has these rows.
    """
    from hedgerow.client.budget import BudgetBook, fold_name

    folder = Path(invitation).parent
    own, books = Path(budget or folder / f"{party}-budget.db"), dict[Path, set[str]]()
    others = [place for place in sorted(folder.glob("*-budget.db")) if place != own and budget is None]
    elsewhere = list[Path]()
    for place in [*([] if is_named or not own.is_file() else [own]), *others]:
        with closing(BudgetBook(place)) as book:
            books[place] = {line.data_set for line in book.lines()}
            elsewhere += [place] if place != own and book.lines(data_set) else []
    books = {own: books[own]} if own in books else books
    known = set[str]().union(*books.values())
    if not is_named and known and fold_name(data_set) not in map(fold_name, known):
        used = join_names(str(place) for place, names in books.items() if names)
        raise UsageError("data-set-new", data_set=data_set, book=used, known=join_names(sorted(known)))
    if elsewhere:
        raise UsageError("budget-elsewhere", data_set=data_set, book=elsewhere[0], own=own)
    return own
