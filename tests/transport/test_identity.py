"""Identities and rosters: files that prove what they say, that only their owner can use, and that one edit breaks."""

from __future__ import annotations

import grp
import json
import os
import pickle
import pwd
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.app.inputs import read_plan, read_policy, signing_roster
from hedgerow.carriers import read_coordinator_file
from hedgerow.codec import format_spoken
from hedgerow.crypto import Identity
from hedgerow.errors import EnvironmentFault, HedgerowError, RemoteProtocolError, UsageError
from hedgerow.models.model import write_atomically
from hedgerow.secagg.messages import Roster, Site
from hedgerow.transport.identities import (
    PinnedRoster,
    PrivateIdentity,
    PublicIdentity,
    Role,
    build_roster,
    check_name,
    create_identity,
    new_identity,
    parse_public,
    parse_roster,
    public_lines,
    read_private,
    read_public,
    read_roster,
    to_fields,
)

HUB = new_identity("hub", Role.COORDINATOR, bytes(32))
NORTH = new_identity("north", Role.SITE, bytes([1]) * 32)
SOUTH = new_identity("south", Role.SITE, bytes([2]) * 32)
ROSTER = build_roster(HUB.public, [SOUTH.public, NORTH.public])
PARTY = 'version = 1\nroster = "roster.toml"\nidentity = "hub.private.json"\nplan = "plan.toml"\nout = "model.json"\n'
PLAN = """
version = 1
name = "one"
privacy = { epsilon = 1, delta = 1e-6, n_records = 300 }
features = [{ name = "x", type = "numeric", min = 0, max = 1 }]
label = { name = "y", type = "binary", classes = ["0", "1"] }
"""


def test_files_come_back(tmp_path: Path) -> None:
    """What was made is what is read; the private file is its owner's alone from the first byte on."""
    os.umask(0o022)
    identity, private, public = create_identity(tmp_path, "east", Role.SITE)
    assert read_private(private) == identity
    assert read_public(public) == identity.public
    assert private.stat().st_mode & 0o777 == 0o600
    assert identity.tls_key.decode() not in public.read_text()
    assert set(tmp_path.iterdir()) == {private, public}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o610])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever loosened it may have let it be read: the owner decides, not the program."""
    _, private, _ = create_identity(tmp_path, "east", Role.SITE)
    private.chmod(mode)
    with pytest.raises(EnvironmentFault) as error:
        read_private(private)
    assert error.value.code == "identity-permissions"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Not a private file, not a public one, not a roster."""
    _, private, public = create_identity(tmp_path, "east", Role.SITE)
    before = private.read_bytes(), public.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        create_identity(tmp_path, "east", Role.SITE)
    assert before == (private.read_bytes(), public.read_bytes())


def test_secrets_are_not_shown() -> None:
    """No representation, no pickle and no error carries a key."""
    secret = NORTH.seed.hex(), NORTH.tls_key.decode()
    assert not any(text in repr(NORTH) for text in secret)
    with pytest.raises(TypeError):
        pickle.dumps(NORTH)


@pytest.mark.parametrize("field", ["identity_seed", "tls_key", "public", "version", "format"])
def test_a_damaged_private_file_is_refused_without_quoting_it(tmp_path: Path, field: str) -> None:
    """Another party's value in any field, or none, is an error, and the error tells no secret."""
    _, private, _ = create_identity(tmp_path, "east", Role.SITE)
    (tmp_path / "other").mkdir()
    _, other, _ = create_identity(tmp_path / "other", "west", Role.SITE)
    content, foreign = json.loads(private.read_text()), json.loads(other.read_text())
    for value in ({**content, field: foreign[field]} if field not in ("version", "format") else None, None):
        changed = {key: kept for key, kept in content.items() if key != field} if value is None else value
        private.write_text(json.dumps(changed))
        with pytest.raises(HedgerowError) as error:
            read_private(private)
        assert content["identity_seed"] not in str(error.value) and "BEGIN" not in str(error.value)


@pytest.mark.parametrize("field", ["name", "role", "identity_key", "certificate", "proof"])
def test_a_public_file_proves_itself(field: str) -> None:
    """No part can be exchanged for another party's: nobody can register somebody else's key or certificate."""
    mine, other = to_fields(NORTH.public), to_fields(SOUTH.public)
    value = "coordinator" if field == "role" else other[field]
    with pytest.raises(RemoteProtocolError) as error:
        parse_public({**mine, field: value}, "here")
    assert error.value.code == "identity-proof"


def test_a_certificate_that_somebody_else_made_is_refused() -> None:
    """The certificate must be signed by its own key; a copy of its bytes with another signature is none."""
    damaged = bytearray(NORTH.public.certificate)
    damaged[-1] ^= 1
    with pytest.raises(RemoteProtocolError):
        PublicIdentity("north", Role.SITE, NORTH.public.identity_key, bytes(damaged), NORTH.public.proof)
    with pytest.raises(RemoteProtocolError):
        PrivateIdentity(NORTH.public, SOUTH.seed, NORTH.tls_key)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "é", "a\n", "\x1b[2J", "x" * 65, "../up", ".hidden"])
def test_names_that_cannot_be(name: str) -> None:
    """A name goes into paths, terminals and labels: what could be misread there is refused."""
    with pytest.raises(UsageError):
        check_name(name)


def test_the_key_is_the_one_of_secure_aggregation() -> None:
    """The roster's identity key is the key that signs in secure aggregation, so both pin the same party."""
    assert Identity(NORTH.seed).public == NORTH.public.identity_key
    Roster(ROSTER.coordinator.identity_key, tuple(Site(site.name, site.identity_key) for site in ROSTER.sites))


def test_rows_that_are_declared_are_pinned_like_keys(tmp_path: Path) -> None:
    """Who declares rows, and how many, is in the fingerprint and in the hash that nodes compare; a roster in which
    no one does has the fingerprint and the file that it had before there was such a field.
    """
    declared = build_roster(HUB.public, [SOUTH.public, NORTH.public], max_rows={"south": 5000})
    path = tmp_path / "roster.toml"
    path.write_text(declared.to_toml())
    assert read_roster(path) == declared
    assert [declared.find_max_rows(name) for name in ("north", "south")] == [0, 5000]
    assert "version = 2" in declared.to_toml() and "version = 1" in ROSTER.to_toml() and not ROSTER.max_rows
    sites = [SOUTH.public, NORTH.public]
    others = [build_roster(HUB.public, sites, max_rows=rows) for rows in ({"south": 5001}, {"north": 5000}, {})]
    rosters = [declared, *others]
    assert len({roster.digest() for roster in rosters}) == len({signing_roster(each).hash() for each in rosters}) == 4
    assert others[-1] == ROSTER
    parties = b"".join(party.digest() for party in ROSTER.everybody)
    assert ROSTER.digest() == sha256(b"hedgerow/roster/1/" + (1).to_bytes(8, "big") + parties).digest()
    for roster in rosters:
        assert Roster.from_bytes(signing_roster(roster).to_bytes()) == signing_roster(roster)
    # The field is always there, so no roster can be read as another.
    assert len(signing_roster(declared).to_bytes()) == len(signing_roster(ROSTER).to_bytes())


@pytest.mark.parametrize("value", ["-1", "true", "1.5", '"many"', "99999999999999999999"])
def test_rows_that_are_no_number_are_refused(value: str) -> None:
    """A number that a node would clip by is a whole one."""
    declared = build_roster(HUB.public, [SOUTH.public, NORTH.public], max_rows={"south": 5000}).to_toml()
    with pytest.raises(UsageError):
        parse_roster(declared.replace("max_rows = 5000", f"max_rows = {value}"))
    with pytest.raises(UsageError):
        parse_roster(declared.replace("version = 2", "version = 1"))
    with pytest.raises(UsageError):
        build_roster(HUB.public, [SOUTH.public], max_rows={"west": 1})


def test_a_roster_comes_back(tmp_path: Path) -> None:
    """The file is the roster, its sites sorted; spaces and comments do not change what it pins."""
    path = tmp_path / "roster.toml"
    path.write_text("# a comment\n" + ROSTER.to_toml().replace("\n\n", "\n\n\n"))
    assert read_roster(path) == ROSTER
    assert [site.name for site in ROSTER.sites] == ["north", "south"]
    assert ROSTER.fingerprint() in ROSTER.to_toml()


def test_every_change_changes_the_fingerprint() -> None:
    """Who joins, leaves or renews keys, and every new epoch, makes another fingerprint; the order of files does not."""
    east, renewed = (new_identity(name, Role.SITE, bytes([7]) * 32).public for name in ("east", "north"))
    rosters = [
        ROSTER,
        build_roster(HUB.public, [NORTH.public, SOUTH.public], ROSTER),
        build_roster(HUB.public, [NORTH.public]),
        build_roster(HUB.public, [NORTH.public, SOUTH.public, east]),
        build_roster(HUB.public, [renewed, SOUTH.public]),
        build_roster(new_identity("hub", Role.COORDINATOR, bytes([8]) * 32).public, [NORTH.public, SOUTH.public]),
    ]
    assert len({roster.fingerprint() for roster in rosters}) == len(rosters)
    assert [roster.edition for roster in rosters[:3]] == [1, 2, 1]
    assert build_roster(HUB.public, [NORTH.public, SOUTH.public]) == ROSTER


def test_rosters_that_cannot_be() -> None:
    """Nobody twice, capitals or not, nobody in another's role, nobody out of order, and at least one site."""
    alike = new_identity(NORTH.public.name.swapcase(), Role.SITE, bytes(range(32))).public
    copy = new_identity("copy", Role.SITE, NORTH.seed).public
    for coordinator, sites in (
        (HUB.public, [NORTH.public, NORTH.public]),
        (HUB.public, [NORTH.public, copy]),
        (HUB.public, [NORTH.public, alike]),
        (NORTH.public, [SOUTH.public]),
        (HUB.public, [HUB.public]),
        (HUB.public, []),
    ):
        with pytest.raises(UsageError):
            build_roster(coordinator, sites)
    with pytest.raises(UsageError):
        PinnedRoster(1, HUB.public, (SOUTH.public, NORTH.public))


@given(where=st.integers(0, 10_000), what=st.integers(32, 126))
def test_an_edited_roster_is_another_roster_or_none(where: int, what: int) -> None:
    """One changed character is an error or changes the fingerprint, unless it is in a comment or in white space."""
    text = ROSTER.to_toml()
    start = text.index("version")
    position = start + where % (len(text) - start)
    edited = text[:position] + chr(what) + text[position + 1 :]
    try:
        roster = parse_roster(edited)
    except HedgerowError:
        return
    assert roster == ROSTER or roster.fingerprint() != ROSTER.fingerprint()


@given(data=st.text(max_size=200))
def test_any_text_is_a_roster_or_an_error(data: str) -> None:
    """Whatever file is given, the answer is one of ours."""
    for text in (data, public_lines(NORTH.public) + data, ROSTER.to_toml() + data):
        try:
            parse_roster(text)
        except HedgerowError:
            continue


@given(first=st.binary(min_size=32, max_size=32), second=st.binary(min_size=32, max_size=32))
def test_fingerprints_are_said_and_heard(first: bytes, second: bytes) -> None:
    """Eight groups of four signs, none of which is mistaken for another; equal exactly when 160 bits are."""
    text = format_spoken(first)
    assert [len(group) for group in text.split("-")] == [4] * 8
    assert not set("ILOU") & set(text)
    assert (text == format_spoken(second)) == (first[:20] == second[:20])


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o620, 0o602])
def test_a_roster_or_policy_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Who may write them says whom a node trusts and what it permits; a file that others may only read is one's own."""
    before = os.umask(0o002)
    try:
        write_atomically(tmp_path / "roster.toml", ROSTER.to_toml().encode())
    finally:
        os.umask(before)
    assert read_roster(tmp_path / "roster.toml") == ROSTER
    (tmp_path / "policy.toml").write_text("")
    for read, name in ((read_roster, "roster.toml"), (read_policy, "policy.toml")):
        (tmp_path / name).chmod(mode)
        with pytest.raises(EnvironmentFault) as refused:
            read(tmp_path / name)  # type: ignore[operator]
        assert refused.value.code == "file-of-others"


Give = Callable[[Path, int], None]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Gives a file, a folder or a link to a user.

    Only root can. For anybody else the system's answers are changed: whose it is, and that they are root and own what
    is theirs as root.
    """
    me, owners = os.geteuid(), dict[tuple[int, int], int]()
    if me == 0:
        return lambda path, user: os.chown(path, user, user, follow_symlinks=False)

    def answer(ask: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def ask_of_owners(*what: Any, **how: Any) -> os.stat_result:
            found = ask(*what, **how)
            owner = owners.get((found.st_dev, found.st_ino), 0 if found.st_uid == me else found.st_uid)
            return os.stat_result((*found[:4], owner, *found[5:]))

        return ask_of_owners

    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, answer(getattr(os, name)))
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def note_owner(path: Path, user: int) -> None:
        found = os.lstat(path)
        owners[found.st_dev, found.st_ino] = user

    return note_owner


@pytest.mark.parametrize(
    ("mode", "owner", "is_followed"),
    [(0o1777, 12345, False), (0o775, 12345, False), (0o755, 12345, True), (0o1777, 54321, True), (0o1777, 0, True)],
)
def test_a_link_that_another_user_has_put_there_is_not_written_through(
    tmp_path: Path, give: Give, mode: int, owner: int, is_followed: bool
) -> None:
    """As in /tmp, where the system follows none such for who opens it; one's own leads where it leads."""
    key, link = tmp_path / "key.json", tmp_path / "shared" / "model.json"
    key.write_text("key")
    link.parent.mkdir()
    link.symlink_to(key)
    give(link, owner)
    give(link.parent, 54321)
    link.parent.chmod(mode)
    write_atomically(link, b"model")
    assert key.read_text() == ("model" if is_followed else "key")
    assert link.read_text() == "model" and link.is_symlink() == is_followed


@pytest.mark.parametrize("way", ["link", "link to a link", "linked folder", "folder", "target", "change"])
def test_no_name_on_the_way_to_a_policy_is_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give: Give, way: str
) -> None:
    """A link to an older policy of one's own permits what that did; so does one read after another was looked at."""
    mine, other, text = 10001, 12345, 'version = 1\ndata_set = "d"\nmax_epsilon = 1\ndelta = 1e-6\n'
    home, shared = tmp_path / "home", tmp_path / "shared"
    for folder, mode in ((home, 0o755), (shared, 0o1777), (shared / "theirs", 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    for place in (home / "policy.toml", shared / "policy.toml", shared / "theirs" / "policy.toml"):
        place.write_text(text)
        place.chmod(0o644)
        give(place, mine)
    for link, target in (
        (shared / "link", home / "policy.toml"),
        (home / "own", shared / "link"),
        (shared / "linked", home),
        (home / "to", shared / "policy.toml"),
    ):
        link.symlink_to(target)
        give(link, mine)
    path, their = {
        "link": (shared / "link", shared / "link"),
        "link to a link": (home / "own", shared / "link"),
        "linked folder": (shared / "linked" / "policy.toml", shared / "linked"),
        "folder": (shared / "theirs" / "policy.toml", shared / "theirs"),
        "target": (home / "to", shared / "policy.toml"),
        "change": (shared / "policy.toml", shared / "policy.toml"),
    }[way]
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    assert read_policy(str(path)).max_epsilon == 1
    give(their, other)
    if way == "change":
        # Theirs is opened, and the name leads to one's own again by then.
        opened = their.open(encoding="utf-8")
        their.unlink()
        their.write_text(text)
        give(their, mine)
        monkeypatch.setattr(Path, "open", lambda *_, **__: opened)
    with pytest.raises(EnvironmentFault) as refused:
        read_policy(str(path))
    assert refused.value.code == "state-owner" and str(their) in refused.value.what


@pytest.mark.parametrize(
    ("folder_mode", "owner", "expected"),
    [
        (0o775, 12345, "file-of-others"), (0o777, 12345, "file-of-others"), (0o1777, 12345, "state-owner"),
        (0o755, 12345, "taken"), (0o775, 54321, "file-of-others"), (0o777, 54321, "file-of-others"),
        (0o1777, 54321, "taken"), (0o1777, 10001, "taken"), (0o777, 10001, "file-of-others"), (0o1775, 0, "taken"),
    ],
)  # fmt: skip
def test_a_policy_that_another_user_may_put_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give: Give, folder_mode: int, owner: int, expected: str
) -> None:
    """Who may write to a folder may put a file of their own in the place of one that no one else may write."""
    place = tmp_path / "site" / "policy.toml"
    place.parent.mkdir()
    place.write_text('version = 1\ndata_set = "d"\nmax_epsilon = 1\ndelta = 1e-6\n')
    place.chmod(0o644)
    give(place, owner)
    give(place.parent, 54321)
    place.parent.chmod(folder_mode)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    found = "taken"
    try:
        read_policy(str(place))
    except EnvironmentFault as fault:
        found = fault.code
    assert found == expected


@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o707, 0o757, 0o1777, 0o755])
@pytest.mark.parametrize("what", ["policy", "roster", "plan", "party file"])
def test_a_folder_of_all_users_on_the_way_to_what_binds_a_party_is_refused(
    tmp_path: Path, above: int, mode: int, what: str
) -> None:
    """Whoever may rename it puts another one in its place, however far up; but not where the system keeps each user's
    files from the others, as in /tmp.
    """
    place = tmp_path / "a" / "b" / "c" / f"{what}.toml"
    place.parent.mkdir(parents=True)
    texts: dict[str, tuple[str, Callable[[Path], object]]] = {
        "policy": ('version = 1\ndata_set = "d"\nmax_epsilon = 1\ndelta = 1e-6\n', lambda path: read_policy(str(path))),
        "roster": (ROSTER.to_toml(), read_roster),
        "plan": (PLAN, lambda path: read_plan(str(path), is_own=True)),
        "party file": (PARTY, read_coordinator_file),
    }
    text, read = texts[what]
    place.write_text(text)
    place.chmod(0o644)
    place.parents[above].chmod(mode)
    if mode in (0o1777, 0o755):
        read(place)
        return
    with pytest.raises(EnvironmentFault) as refused:
        read(place)
    assert refused.value.code == "file-of-others" and str(place.parents[above]) in refused.value.what


@pytest.mark.parametrize("members", ["none", "another", "another's own"])
def test_a_group_of_ones_own_is_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, give: Give, members: str
) -> None:
    """Many systems give each user a group, and let it write to the user's folders."""
    place = tmp_path / "site" / "policy.toml"
    place.parent.mkdir()
    place.write_text('version = 1\ndata_set = "d"\nmax_epsilon = 1\ndelta = 1e-6\n')
    for path in (place, place.parent):
        give(path, 54321)
    place.chmod(0o644)
    place.parent.chmod(0o775)
    group = place.parent.stat().st_gid
    me = pwd.struct_passwd(("me", "x", 54321, group, "", "/", "/bin/sh"))
    other = pwd.struct_passwd(("other", "x", 11, group if members == "another's own" else 11, "", "/", "/bin/sh"))
    listed = ["other"] if members == "another" else []
    monkeypatch.setattr(pwd, "getpwuid", lambda _: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, other])
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("me", "x", group, listed)))
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    if members == "none":
        assert read_policy(str(place)).max_epsilon == 1
        return
    with pytest.raises(EnvironmentFault) as refused:
        read_policy(str(place))
    assert refused.value.code == "file-of-others"
