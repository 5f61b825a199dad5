"""Enrolment against everyone who could come between: each is refused by name, or seen in the words."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.app.study import _require_own_roster
from hedgerow.app.study import withdraw as withdraw_by_hand
from hedgerow.codec import Encoded
from hedgerow.errors import RemoteProtocolError, UsageError
from hedgerow.protocol.refusals import WireRefusal
from hedgerow.protocol.stream import Asking, AskingStep, Challenge, Farewell, Knock, Opening, Standing, read_first
from hedgerow.server.journal import Journal
from hedgerow.study import Reception, StudyBook, StudyInvitation, are_same_words, spell_words
from hedgerow.transport.identities import (
    PinnedRoster,
    Role,
    adds_monitors_only,
    build_roster,
    describe_change,
    follows,
    new_identity,
    read_roster,
)
from tests.builders import coded

if TYPE_CHECKING:
    from conftest import Party, Study


def refusal(answer: Encoded) -> str:
    """The code word of an answer that is none."""
    assert isinstance(answer, Farewell)
    return answer.code


def take_roster(parties: list[Party], answer: Callable[[bytes], Encoded]) -> None:
    """Ask until everybody has the roster."""
    for _ in range(4):
        for party in parties:
            party.ask(answer)


def roster_words(party: Party) -> str:
    return (party.notes.read("roster_words") or b"").decode()


def test_both_ends_see_the_same_words(study: Study) -> None:
    """What people compare is equal when nobody is in between; a party that was killed says what it said before."""
    for name in study.invitations:
        party = study.party(name)
        assert party.enrol(study.answer) == study.words(name) == party.again().enrol(study.answer)
        study.book.confirm(name, study.words(name).upper().replace(" ", ", "), study.identity.public)
    assert len({study.words(name) for name in study.invitations}) == 3


def test_all_take_the_same_roster_and_see_the_same_words(study: Study) -> None:
    """Everybody pins everybody's keys; a restart in between changes nothing."""
    parties = study.gather()
    parties[0].ask(study.answer)
    parties[0] = parties[0].again()
    take_roster(parties, study.answer)
    rosters = [party.end.roster for party in parties]
    assert rosters[0] is not None and rosters == [study.book.roster] * 3
    assert set(rosters[0].sites) == {party.identity.public for party in parties}
    assert {roster_words(party) for party in parties} == {study.book.roster_words} != {""}
    assert all(guest.has_all for guest in study.book.guests())


# Strangers, and thieves ---------------------------------------------------------------------------------------------


def test_a_stranger_without_the_invitation_gets_nowhere_and_uses_nothing_up(study: Study) -> None:
    """Who knows names and keys, but not the secret, is refused, and the invited site enrols afterwards."""
    thief = study.party("north", "thief")
    forged = replace(study.invitations["north"], secret=os.urandom(32))
    study.invitations["forged"] = forged
    stranger = study.party("forged", "stranger")
    assert refusal(study.answer(stranger.end.knock().to_bytes())) == "invitation-unknown"
    nobody = Knock("nobody", bytes(32), bytes(32))
    assert refusal(study.answer(nobody.to_bytes())) == "invitation-unknown"
    assert not study.guest("north").commitment
    assert thief.enrol(study.answer) == study.words("north")


def test_a_stolen_invitation_shows_when_the_site_comes(study: Study) -> None:
    """The thief came first: the site is refused by name, and other words are not taken for the thief's."""
    thief, site = study.party("north", "thief"), study.party("north")
    seen = thief.enrol(study.answer)
    assert refusal(study.answer(site.end.knock().to_bytes())) == "invitation-used"
    assert study.words("north") == seen
    with pytest.raises(UsageError, match="north") as differs:
        study.book.confirm("north", "apple river stone lamp", study.identity.public)
    assert differs.value.code == "words-differ" and not study.guest("north").is_confirmed
    # Invited again, with the first one void.
    study.invitations["north"] = study.invite("north")
    assert refusal(study.answer(thief.end.asking().to_bytes())) == "invitation-unknown"
    again = study.party("north", "again")
    assert again.enrol(study.answer) == study.words("north") != seen


def test_an_invitation_that_was_used_is_of_no_use_to_a_thief(study: Study) -> None:
    """Neither another key, nor a question in the site's name, which it cannot sign."""
    site, thief = study.party("north"), study.party("north", "thief")
    words = site.enrol(study.answer)
    assert refusal(study.answer(thief.end.knock().to_bytes())) == "invitation-used"
    assert refusal(study.answer(thief.end.asking().to_bytes())) == "invitation-used"
    assert study.words("north") == words


def test_keys_of_another_cannot_be_enrolled(study: Study) -> None:
    """A site that shows another's public keys as its own has not their secret, and is refused."""
    victim = study.party("south").identity
    site = study.party("north")
    claimed = new_identity("north", Role.SITE, os.urandom(32))
    site.end.knock()
    answer = study.answer(site.end.knock().to_bytes())
    opening = site.end.opening(answer.to_bytes())
    stolen = replace(opening, identity_key=victim.public.identity_key, certificate=victim.public.certificate)
    assert refusal(study.answer(stolen.to_bytes())) == "malformed"
    other = replace(opening, identity_key=claimed.public.identity_key, certificate=claimed.public.certificate,
                    proof=claimed.public.proof)  # fmt: skip
    assert refusal(study.answer(other.to_bytes())) == "invitation-unknown"
    assert study.guest("north").party is None


def test_a_number_of_rows_reaches_the_roster_as_its_site_says_it(study: Study) -> None:
    """The coordinator cannot change it, nor somebody on the way; what a site has said once it says again."""
    site = study.party("north", max_rows=5000)
    opening = site.end.opening(study.answer(site.end.knock().to_bytes()).to_bytes())
    assert opening.max_rows == 5000
    assert refusal(study.answer(replace(opening, max_rows=6000).to_bytes())) == "invitation-unknown"
    parties = [site.again(), study.party("south", max_rows=300), study.party("west")]
    for party in parties:
        study.book.confirm(party.invitation.party, party.enrol(study.answer), study.identity.public)
    study.book.close_roster(study.identity.public)
    for _ in range(3):
        for party in parties:
            party.ask(study.answer)
    for party in parties:
        assert party.end.roster is not None and party.end.roster.max_rows == (5000, 300, 0)


def test_a_roster_with_another_number_of_rows_is_refused(study: Study) -> None:
    """A site's limit on all others would otherwise be the coordinator's to set."""
    parties = [study.party(name, max_rows=5000) for name in study.invitations]
    for party in parties:
        study.book.confirm(party.invitation.party, party.enrol(study.answer), study.identity.public)
    study.book.note(study.guest("north"), max_rows=50_000)
    study.book.close_roster(study.identity.public)
    with pytest.raises(RemoteProtocolError) as caught:
        parties[0].ask(study.answer)
    assert caught.value.code == "roster-offered"
    parties[1].ask(study.answer)


# Somebody between ---------------------------------------------------------------------------------------------------


class Between:
    """Has changed the invitation on its way: the site talks to it, and it talks to the coordinator as the site.

    It knows all that stood in the true invitation, and can do whatever both ends can.
    """

    def __init__(self, study: Study) -> None:
        self.identity = new_identity("coordinator", Role.COORDINATOR, os.urandom(32))
        self.true = study.party("north", "between")
        book = StudyBook.create(_made(study.folder / "false"), {"name": "wards"})
        self.false = replace(study.invitations["north"], coordinator=self.identity.public)
        book.invite(self.false)
        self.book, self.reception = book, Reception(self.identity.public, book, os.urandom)

    def site(self, study: Study) -> Party:
        study.invitations["false"] = self.false
        return study.party("false", "north")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_who_stands_between_is_seen_in_the_words(study: Study) -> None:
    """Each end enrols with it in good order, and the words that the people compare are not the same."""
    between = Between(study)
    at_site = between.site(study).enrol(between.reception.answer)
    at_coordinator = between.true.enrol(study.answer)
    assert study.words("north") == at_coordinator != at_site
    with pytest.raises(UsageError, check=coded("words-differ")):
        study.book.confirm("north", at_site, study.identity.public)


def test_who_stands_between_cannot_try_again_at_the_coordinator(study: Study) -> None:
    """Once a challenge was heard, only what was committed to before is taken: no numbers are tried until words fit."""
    between = Between(study)
    between.site(study).enrol(between.reception.answer)
    knock = between.true.end.knock()
    answer = study.answer(knock.to_bytes())
    # A second commitment for the same invitation has no second challenge.
    assert refusal(study.answer(study.party("north", "second").end.knock().to_bytes())) == "invitation-used"
    assert study.answer(knock.to_bytes()) == answer
    # Another number than the one that was committed to, in good order otherwise.
    other = study.party("north", "third")
    tried = other.end.opening(answer.to_bytes())
    assert refusal(study.answer(tried.to_bytes())) == "invitation-used"
    assert study.guest("north").party is None


def test_who_stands_between_cannot_try_again_at_the_site(study: Study) -> None:
    """The site keeps the first challenge that it was given: with a second one, it says nothing more."""
    between = Between(study)
    site = between.site(study)
    words = site.enrol(between.reception.answer)
    guest = between.book.guest("north")
    assert guest is not None
    between.book.note(guest, challenge=os.urandom(32))
    restarted = site.again()
    with pytest.raises(WireRefusal) as refused:
        restarted.enrol(between.reception.answer)
    assert refused.value.code == "invitation-used" and site.end.words == words


def test_nothing_is_shown_before_the_other_end_is_bound(study: Study) -> None:
    """The first message tells nothing of keys and numbers, and the challenge comes only after it."""
    party = study.party("north")
    knock = party.end.knock().to_bytes()
    own = party.identity.public
    shown = [own.identity_key, own.certificate[:40], party.notes.read("nonce"), party.notes.read("second")]
    assert not any(secret in knock for secret in shown if secret)
    assert not study.guest("north").challenge
    study.answer(knock)
    assert len(study.guest("north").challenge) == 32


@pytest.mark.parametrize("field", ["study", "party", "address", "plan", "policy", "secret"])
def test_a_changed_invitation_is_refused_and_uses_nothing_up(study: Study, field: str) -> None:
    """Whatever was changed on the way, even with the secret known, is refused; the true invitation stays good."""
    true = study.invitations["north"]
    changed = replace(true, **{field: os.urandom(32) if field == "secret" else getattr(true, field) + "x"})
    study.invitations["changed"] = changed
    party = study.party("changed")
    # Also where it says the party's true name.
    knock = replace(party.end.knock(), party="north")
    assert refusal(study.answer(knock.to_bytes())) == "invitation-unknown"
    assert not study.guest("north").commitment
    assert study.party("north").enrol(study.answer) == study.words("north")


# A coordinator that lies about the roster -----------------------------------------------------------------------------


def offered(party: Party, standing: Standing) -> None:
    party.end.take(standing.to_bytes())


def test_two_rosters_have_two_sets_of_words(study: Study) -> None:
    """A coordinator that shows one site other keys than the rest is seen when the sites compare."""
    north, south, west = study.gather()
    puppet = new_identity("west", Role.SITE, os.urandom(32))
    sites = [north.identity.public, south.identity.public, puppet.public]
    false = build_roster(study.identity.public, sites).to_toml().encode()
    true = study.book.standing()
    for party in (south, west):
        party.ask(study.answer)
    offered(north, Standing(false, true.sealed))
    take_roster([south, west], study.answer)
    nonces = tuple(party.end.asking().nonce for party in (north, south, west))
    offered(north, Standing(false, true.sealed, nonces))
    offered(south, Standing(true.roster, true.sealed, nonces))
    assert roster_words(north) and roster_words(south) and roster_words(north) != roster_words(south)


def test_a_roster_is_not_exchanged_after_a_number_was_shown(study: Study) -> None:
    """The first roster and its hashes count: else a coordinator could look for one with the words of another."""
    north, *others = study.gather()
    north.ask(study.answer)
    true = study.book.standing()
    swapped = replace(true, sealed=(*true.sealed[:-1], bytes(32)))
    for other in (swapped, replace(true, roster=true.roster + b"\n")):
        with pytest.raises(RemoteProtocolError) as refused:
            offered(north, other)
        assert refused.value.code == "roster-offered"
    with pytest.raises(RemoteProtocolError, match="sealed"):
        offered(north, replace(true, nonces=(bytes(32), bytes(32), bytes(32))))
    # A later one is shown, without words: those of it could have been chosen.
    first = study.book.roster
    assert first is not None
    later = build_roster(study.identity.public, first.sites, first).to_toml().encode()
    with pytest.raises(RemoteProtocolError):
        offered(north, replace(true, roster=later, sealed=true.sealed[1:]))
    offered(north, replace(true, roster=later))
    nonces = tuple(party.notes.read("second") or b"" for party in (north, *others))
    offered(north, replace(true, roster=later, nonces=nonces))
    assert north.end.roster is not None and north.end.roster.edition == 2 and north.end.roster_words == ""
    with pytest.raises(RemoteProtocolError):
        offered(north, true)


def test_a_roster_without_ones_own_keys_is_refused(study: Study) -> None:
    """A site takes no roster in which somebody else is it, or another coordinator, or its number is missing."""
    north, south, west = study.gather()
    sealed = study.book.standing().sealed
    others = [south.identity.public, west.identity.public]
    puppet = new_identity("north", Role.SITE, os.urandom(32)).public
    foreign = new_identity("coordinator", Role.COORDINATOR, os.urandom(32)).public
    own = north.identity.public
    for roster in (
        build_roster(study.identity.public, [puppet, *others]),
        build_roster(study.identity.public, others),
        build_roster(foreign, [own, *others]),
    ):
        with pytest.raises(RemoteProtocolError):
            offered(north, Standing(roster.to_toml().encode(), sealed))
    true = build_roster(study.identity.public, [own, *others]).to_toml().encode()
    for wrong in ((bytes(32), *sealed[1:]), sealed[1:], ()):
        with pytest.raises(RemoteProtocolError):
            offered(north, Standing(true, wrong))
    with pytest.raises(RemoteProtocolError, match="read"):
        offered(north, Standing(b"\xff", sealed))
    offered(north, Standing(true, sealed))


def test_the_roster_waits_for_every_confirmation(study: Study) -> None:
    """As long as one party's words have not been compared, nobody is given a roster."""
    party = study.party("north")
    party.enrol(study.answer)
    party.ask(study.answer)
    assert party.end.roster is None and study.answer(party.end.asking().to_bytes()) == Standing()
    study.book.confirm("north", party.end.words, study.identity.public)
    assert not study.book.close_roster(study.identity.public) and study.book.roster is None
    with pytest.raises(UsageError) as early:
        study.book.confirm("south", "apple river stone lamp", study.identity.public)
    assert early.value.code == "not-enrolled"
    with pytest.raises(UsageError) as unknown:
        study.book.confirm("nobody", "apple river stone lamp", study.identity.public)
    assert unknown.value.code == "not-invited"


def test_who_is_in_the_roster_is_not_invited_again(study: Study) -> None:
    """Keys that were compared are not replaced by a new invitation."""
    study.gather()
    with pytest.raises(UsageError) as refused:
        study.invite("north")
    assert refused.value.code == "invited-already"


@settings(max_examples=6, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=8))
# Two refuse; one that has finished; one who has shown its number and waits.
@example(moves=[*[(place, False) for place in (0, 1, 2)] * 4, (0, True), (1, True)])
@example(moves=[(0, False), (0, False), (1, True)])
def test_who_refuses_or_never_comes_back_holds_nobody_up(
    new_study: Callable[..., Study], tmp_path: Path, moves: list[tuple[int, bool]]
) -> None:
    """Whoever is withdrawn while a roster is being sent, and however far the others are: all who stay end with a roster
    that trusts none of those, and see words of no roster that was made when their numbers were known.
    """
    study = new_study(f"study-{len(list(tmp_path.iterdir()))}", "a", "b", "c")
    parties, gone = {party.invitation.party: party for party in study.gather()}, set[str]()
    taken = {}
    for place, is_withdrawn in moves:
        name = "abc"[place]
        if name in gone:
            continue
        if is_withdrawn and len(gone) < 2:
            withdraw(study, name)
            gone.add(name)
            continue
        parties[name].ask(study.answer)
        taken = {one.name: one.has_all for one in study.book.guests()}
    early = {name for name, party in parties.items() if taken.get(name) and party.end.roster is not None}
    staying = [party for name, party in parties.items() if name not in gone]
    settle(study, staying)
    last = study.book.roster
    assert last is not None and {site.name for site in last.sites} == set(parties) - gone
    assert all(guest.has_all for guest in study.book.guests()) and study.book.close_roster(study.identity.public)
    for party in staying:
        roster = party.end.roster
        assert roster is not None and (roster == last or party.invitation.party in early)
        assert bool(party.end.roster_words) is (roster.edition == 1 or party.notes.read("is_shown") is None)


def withdraw(study: Study, name: str) -> list[PinnedRoster]:
    """The rosters that runs are given."""
    pinned = list[PinnedRoster]()
    assert study.book.withdraw(name, pinned.append) == (pinned[0] if pinned else None)
    return pinned


def settle(study: Study, parties: list[Party]) -> None:
    """All of them ask until they have everybody's numbers, and the coordinator has heard that."""
    for _ in range(3):
        for party in parties:
            party.ask(study.answer)
    for party in parties:
        study.answer(party.end.asking().to_bytes())


def test_who_comes_later_makes_the_next_epoch(study: Study) -> None:
    """A party that is invited once there is a roster enrols as the others did; keys that were pinned stay pinned, and
    nobody is shown another roster before all have the one that there is.
    """
    parties = study.gather()
    first = study.book.roster
    assert first is not None and first.edition == 1
    study.invitations["late"] = study.invite("late")
    study.invitations["watch"] = study.invite("watch", Role.MONITOR)
    late, watch = study.party("late"), study.party("watch")
    for party in (late, watch):
        study.book.confirm(party.invitation.party, party.enrol(study.answer), study.identity.public)
    assert not study.book.close_roster(study.identity.public) and study.book.roster == first
    settle(study, parties)
    assert study.book.close_roster(study.identity.public)
    second = study.book.roster
    assert second is not None and second.edition == 2 and set(first.sites) < set(second.sites)
    assert [site.name for site in second.sites] == ["late", "north", "south", "west"] and len(second.monitors) == 1
    settle(study, [late, watch])
    assert late.end.roster == watch.end.roster == second
    words = {(party.notes.read("roster_words") or b"").decode() for party in (late, watch)}
    assert words == {study.book.roster_words} and all(guest.has_all for guest in study.book.guests())
    # Those who were there keep theirs until their owners say otherwise.
    assert all(party.end.roster == first for party in parties)
    assert follows(second, first) and not follows(first, second) and not adds_monitors_only(second, first)


def test_who_comes_later_waits_for_the_roster_with_its_keys(study: Study) -> None:
    """Asking before the operator has confirmed it, a newcomer is not shown the roster that it is not in: it would take
    the coordinator for a liar.
    """
    settle(study, study.gather())
    study.invitations["late"] = study.invite("late")
    late = study.party("late")
    words = late.enrol(study.answer)
    late.ask(study.answer)
    study.book.confirm("late", words, study.identity.public)
    late.ask(study.answer)
    assert late.end.roster is None and study.book.close_roster(study.identity.public)
    settle(study, [late])
    assert late.end.roster == study.book.roster


def test_the_keys_of_a_withdrawn_party_are_trusted_no_longer(study: Study) -> None:
    """A stolen key is in no later roster, whoever comes; the site itself comes again with new keys, by new words."""
    north, *others = parties = study.gather()
    settle(study, parties)
    first = study.book.roster
    (without,) = withdraw(study, "north")
    assert first is not None and follows(without, first) and describe_change(without, first) == "site north goes"
    assert study.book.roster == without and study.book.close_roster(study.identity.public)
    # Whoever has the old keys and the old invitation is told nothing.
    assert refusal(study.answer(north.end.asking().to_bytes())) == "invitation-unknown"
    study.invitations = {"north": study.invite("north"), "east": study.invite("east")}
    again, east = study.party("north", "north-2"), study.party("east")
    for party in (again, east):
        study.book.confirm(party.invitation.party, party.enrol(study.answer), study.identity.public)
    assert refusal(study.answer(north.end.asking().to_bytes())) == "invitation-used"
    assert study.book.close_roster(study.identity.public)
    settle(study, [again, east])
    last = study.book.roster
    assert last is not None and last.edition == 3 and again.end.roster == east.end.roster == last
    assert describe_change(last, first) == "site east comes, site north has new keys"
    assert {party.identity.public for party in others} < set(last.sites)


def test_a_crash_while_a_party_is_withdrawn_trusts_nobody_again(study: Study) -> None:
    """Runs read the roster without the party before the book says so; to withdraw once more makes the same roster."""
    settle(study, study.gather())
    pinned = list[PinnedRoster]()

    def crash(roster: PinnedRoster) -> None:
        pinned.append(roster)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.book.withdraw("north", crash)
    assert study.guest("north").is_confirmed and withdraw(study, "north") == pinned


def test_nobody_is_withdrawn_while_an_evaluation_goes_on(study: Study) -> None:
    """It keeps the roster that it began with: a stolen key would be trusted after the operator has read otherwise."""
    settle(study, study.gather())
    before, place = study.book.roster, study.folder / "run-1"
    assert before is not None
    place.mkdir()
    (place / "model.json").touch()
    with closing(Journal(place / "model.json.evaluation-8.journal")):
        with pytest.raises(UsageError) as refused:
            withdraw_by_hand(study.folder, "north")
        assert refused.value.code == "study-in-use" and study.book.roster == before
    withdraw_by_hand(study.folder, "north")
    assert read_roster(study.folder / "roster.toml") == study.book.roster != before


def test_a_roster_that_was_built_by_hand_is_not_undone(study: Study) -> None:
    """The study's next roster would follow its own, and trust keys again that were taken out by hand."""
    settle(study, study.gather())
    own = study.book.roster
    assert own is not None
    place = study.folder / "roster.toml"
    for fitting in (None, own.to_toml()):
        if fitting is not None:
            place.write_text(fitting, encoding="utf-8")
        _require_own_roster(study.book)
    by_hand = build_roster(own.coordinator, own.sites[1:], own)
    place.write_text(by_hand.to_toml(), encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        _require_own_roster(study.book)
    assert refused.value.code == "study-roster-by-hand"
    # The same as the study itself makes: a withdrawal that broke off is carried out by the same command.
    _require_own_roster(study.book, by_hand)


def test_a_party_that_never_comes_later_is_withdrawn(study: Study) -> None:
    """The roster is as it was, and who is in it stays."""
    settle(study, study.gather())
    first = study.book.roster
    study.invite("late")
    assert not study.book.close_roster(study.identity.public)
    assert withdraw(study, "late") == []
    assert study.book.close_roster(study.identity.public) and study.book.roster == first


def test_which_rosters_may_follow_another() -> None:
    """Only a later epoch of the same coordinator's keys; monitors alone change only if every site is as it was."""
    hub, *others = (new_identity("hub", Role.COORDINATOR, bytes([number]) * 32).public for number in (1, 2))
    north, south, swapped = (
        new_identity(name, Role.SITE, bytes([number]) * 32).public
        for name, number in (("north", 3), ("south", 4), ("south", 5))
    )
    watch, other_watch = (new_identity("watch", Role.MONITOR, bytes([number]) * 32).public for number in (6, 7))
    first = build_roster(hub, [north, south], None, [watch])
    assert not follows(first, first) and not follows(build_roster(others[0], [north, south], first), first)
    swap = build_roster(hub, [north, swapped], first, [watch])
    assert follows(swap, first) and not adds_monitors_only(swap, first)
    assert describe_change(swap, first) == "site south has new keys"
    for roster, said in (
        (build_roster(hub, [north], first, [watch]), "site south goes"),
        (build_roster(hub, [north, south], first), "monitor watch goes"),
        (build_roster(hub, [north, south], first, [other_watch]), "monitor watch has new keys"),
        (
            build_roster(hub, [north, south], first, [watch], {"north": 5}),
            "site north may use 5 rows, not any number of rows",
        ),
    ):
        assert not adds_monitors_only(roster, first) and describe_change(roster, first) == said
    more = build_roster(hub, [north, south], build_roster(hub, [north, south]), [watch])
    assert adds_monitors_only(more, build_roster(hub, [north, south])) and follows(more, first)
    assert describe_change(more, build_roster(hub, [north, south])) == "monitor watch comes"
    assert describe_change(build_roster(hub, [north, south], first, [watch]), first).startswith("nothing but")


def test_what_was_said_by_an_invitation_does_not_count_for_the_next(study: Study) -> None:
    """A thief's message that is being answered while its invitation is replaced says nothing in the new one's name."""
    thief, replaced = study.party("north", "thief"), list[StudyInvitation]()

    def replace_it(count: int) -> bytes:
        # Between the moment at which the coordinator has looked the guest up and the one at which it writes.
        replaced.append(study.invite("north"))
        return os.urandom(count)

    slow = Reception(study.identity.public, study.book, replace_it)
    assert refusal(slow.answer(thief.end.knock().to_bytes())) == "invitation-unknown"
    assert not study.guest("north").commitment
    old = replace(study.guest("north"), invitation=study.invitations["north"].digest())
    study.book.note(old, party=thief.identity.public, is_confirmed=1)
    assert study.guest("north").party is None and not study.guest("north").is_confirmed
    (study.invitations["north"],) = replaced
    assert study.party("north").enrol(study.answer) == study.words("north")


def test_a_coordinator_that_was_killed_says_the_same(study: Study) -> None:
    """One challenge for an invitation, ever: to make the coordinator start again is no second try."""
    party = study.party("north")
    knock = party.end.knock().to_bytes()
    first = study.answer(knock)
    again = Reception(study.identity.public, StudyBook(study.folder), os.urandom)
    assert again.answer(knock) == first
    assert refusal(again.answer(study.party("north", "second").end.knock().to_bytes())) == "invitation-used"


def test_two_processes_of_a_party_are_one_try(study: Study) -> None:
    """Started twice in one folder, a party has one number and takes one challenge: who is between has one try."""
    one = study.party("north")
    other = one.again()
    assert one.end.knock() == other.end.knock()
    one.end.opening(Challenge(bytes(32)).to_bytes())
    with pytest.raises(WireRefusal) as refused:
        other.end.opening(Challenge(b"x" * 32).to_bytes())
    assert refused.value.code == "invitation-used"


def test_messages_of_one_party_say_nothing_for_another(study: Study) -> None:
    """Replayed under another name, turned back to who sent it, or out of order: each is refused by name."""
    north, south = study.party("north"), study.party("south")
    knock = north.end.knock()
    assert refusal(study.answer(replace(knock, party="south").to_bytes())) == "invitation-unknown"
    early = Asking("north", AskingStep.WAITS, bytes(32), bytes(32), bytes(64))
    assert refusal(study.answer(early.to_bytes())) == "invitation-unknown"
    opening = north.end.opening(study.answer(knock.to_bytes()).to_bytes())
    south.end.opening(study.answer(south.end.knock().to_bytes()).to_bytes())
    assert refusal(study.answer(replace(opening, party="south").to_bytes())) == "malformed"
    assert refusal(study.answer(Challenge(bytes(32)).to_bytes())) == "unexpected-frame"
    study.answer(opening.to_bytes())
    asking = north.end.asking()
    assert refusal(study.answer(replace(asking, step=AskingStep.HAS_NONCES).to_bytes())) == "invitation-used"
    assert study.guest("south").party is None and not study.guest("north").has_all


def test_another_version_is_refused_by_name(study: Study) -> None:
    """Who speaks an older version is told so; there is no way to ask for one."""
    knock = bytearray(study.party("north").end.knock().to_bytes())
    knock[3] -= 1
    assert refusal(study.answer(bytes(knock))) == "unknown-version"


# Any bytes ------------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_coordinator_answers_any_bytes(study: Study, data: st.DataObject) -> None:
    """Whatever arrives is answered, by a refusal unless it is a message as it was sent; nothing is confirmed by it."""
    party = study.party("north")
    true = [
        Knock("north", os.urandom(32), os.urandom(32)).to_bytes(),
        Opening("north", bytes(32), b"x", bytes(64), bytes(32), bytes(32), 0, bytes(32), bytes(64)).to_bytes(),
        party.end.asking().to_bytes(),
    ]
    message = bytearray(data.draw(st.sampled_from(true)))
    for place, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(message) - 1), st.integers(0, 255)), max_size=3)
    ):
        message[place] = value
    cut = data.draw(st.integers(0, len(message)))
    assert isinstance(study.answer(bytes(message[:cut])), Farewell)
    assert not study.guest("north").is_confirmed


def test_an_answer_of_another_kind_is_refused(study: Study) -> None:
    """What is no challenge is not taken for one."""
    party = study.party("north")
    with pytest.raises(WireRefusal):
        party.end.opening(Standing().to_bytes())
    with pytest.raises(WireRefusal):
        read_first(
            Standing,
            study.answer(
                Asking("nobody", party.end.asking().step, bytes(32), bytes(32), bytes(64)).to_bytes()
            ).to_bytes(),
        )


# Words ----------------------------------------------------------------------------------------------------------------


def test_the_words_can_be_told_apart() -> None:
    """1,024 words of four to seven letters; no two begin with the same four, or differ in one letter only."""
    every = {spell_words((number << 30).to_bytes(5, "big")).split()[0] for number in range(1024)}
    assert len(every) == 1024 and all(word.isascii() and word.isalpha() and 4 <= len(word) <= 7 for word in every)
    assert len({word[:4] for word in every}) == 1024
    for place in range(7):
        left = [word[:place] + "*" + word[place + 1 :] for word in every if len(word) > place]
        assert len(set(left)) == len(left)


@given(st.binary(min_size=5, max_size=32))
def test_forty_bits_go_into_the_words(raw: bytes) -> None:
    """Every bit of the first five bytes changes them, and nothing behind does."""
    words = spell_words(raw)
    assert len(words.split()) == 4 and spell_words(raw + b"more") == words
    for bit in range(40):
        other = (int.from_bytes(raw[:5], "big") ^ 1 << bit).to_bytes(5, "big")
        assert spell_words(other) != words


def test_what_was_said_is_compared_word_by_word() -> None:
    """Order and number count; capitals, commas and hyphens do not."""
    assert are_same_words("Apple-river, STONE lamp", "apple river stone lamp")
    for other in (
        "",
        "apple river stone",
        "apple river lamp stone",
        "apple river stone lamp lamp",
        "appleriver stone lamp",
    ):
        assert not are_same_words(other, "apple river stone lamp")
