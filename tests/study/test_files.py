"""Invitations and proposals that somebody has made up: what a site reads, it reads as it was meant, or not at all."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app.inputs import build_policy, read_policy, read_text
from hedgerow.app.join import _list_rules
from hedgerow.client.policy import parse_policy
from hedgerow.errors import HedgerowError, UsageError
from hedgerow.study import SUFFIX, StudyInvitation, parse_invitation, read_invitation, write_private
from hedgerow.transport.identities import public_lines, read_public
from hedgerow.transport.interface import Address

if TYPE_CHECKING:
    from conftest import Study


def written(study: Study) -> tuple[StudyInvitation, Path]:
    invitation = study.invitations["north"]
    path = study.folder / f"north{SUFFIX}"
    write_private(path, invitation.to_text())
    return invitation, path


def test_an_invitation_arrives_as_it_was_written(study: Study) -> None:
    """It says the same at the site, and only its owner may read the file with the secret."""
    invitation, path = written(study)
    assert read_invitation(path) == invitation and read_invitation(path).digest() == invitation.digest()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "other"),
        ("version", 2),
        ("study", "../elsewhere"),
        ("party", "/etc"),
        ("role", "coordinator"),
        ("role", "king"),
        ("address", "hub:7443\u202e"),
        ("address", "hub:7443, KJHV-C66C"),
        ("address", "h\u0443b:7443"),
        ("address", "unix:/run/hub:1"),
        ("address", "dns://198.51.100.1/hub:7443"),
        ("address", "ipv4:192.0.2.1:1,192.0.2.2:1"),
        ("address", "--policy=mine:1"),
        ("secret", "c2hvcnQ="),
        ("secret", 7),
        ("coordinator", {}),
    ],
)
def test_an_invitation_that_cannot_be_is_refused(study: Study, field: str, value: object) -> None:
    """A name that leads out of the folder, a role that no guest has, a terminal's tricks: nothing is made of it.

    Nor of an address that is no host's, of which gRPC would make a socket's file or a question to somebody's server.
    """
    invitation, _ = written(study)
    content = {**json.loads(invitation.to_text()), field: value}
    with pytest.raises(UsageError):
        parse_invitation(json.dumps(content), "the invitation")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_invitation_is_refused_or_another(study: Study, data: st.DataObject) -> None:
    """Whatever happens to the file, the site refuses it by name, or the words will be about what it says now."""
    invitation = study.invitations["north"]
    text = invitation.to_text()
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(max_codepoint=0x2100, exclude_categories=["Cs"]))
    damaged = text[:place] + letter + text[place + 1 :]
    try:
        found = parse_invitation(damaged, "the invitation")
    except HedgerowError:
        return
    assert found == invitation or found.digest() != invitation.digest()


def test_files_that_an_editor_has_saved_say_the_same(study: Study, tmp_path: Path) -> None:
    """Editors on Windows begin a file with a byte-order mark and end lines otherwise; nothing was changed by that."""
    invitation, _ = written(study)
    policy = build_policy("max_epsilon = 1\ndelta = 1e-6", "north")
    texts = {"invitation": invitation.to_text(), "plan": invitation.plan, "policy": policy}
    texts["public"] = public_lines(invitation.coordinator)
    for name, text in texts.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_invitation(tmp_path / "invitation") == invitation
    assert read_text(str(tmp_path / "plan")) == invitation.plan
    assert read_policy(str(tmp_path / "policy")) == parse_policy(policy)
    assert read_public(tmp_path / "public") == invitation.coordinator


def test_an_invitation_without_end_is_refused(tmp_path: Path) -> None:
    """Whoever sent it, it does not fill the site's memory."""
    path = tmp_path / f"north{SUFFIX}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError) as refused:
        read_invitation(path)
    assert refused.value.code == "invitation-file"


@pytest.mark.parametrize("address", ["[2001:db8::1]:7443", "[fe80::1%eth0]:7443", "hedgerow.example.org:7443"])
def test_addresses_that_sites_dial(address: str) -> None:
    """Hosts by their name or number, of either version."""
    assert str(Address.parse(address, "--address")) == address


def test_a_policy_is_shown_as_it_is_read() -> None:
    """A proposal may be written to be misread: its true lines scrolled away, and others made up below.

    The budget stands right above the question.
    """
    proposal = 'max_epsilon = 100\n"delta" = 1e-6\nlabels = ["""\\\n  max_epsilon = 0.1"""]\n'
    shown = _list_rules(build_policy(proposal + "# max_epsilon = 0.1\n" * 99, "wards"))
    # Each value comes first, and after it in parentheses the meaning of its field.
    values = [(name, said.partition(" (")[0]) for name, said in shown]
    assert {("data_set", "wards"), ("labels", "max_epsilon = 0.1"), ("features", "all")} < set(values)
    assert values[-2:] == [("max_epsilon", "100.0"), ("delta", "1e-06")]
    assert sum("epsilon" in name for name, _ in shown) == 1


def test_a_proposal_does_not_name_the_data() -> None:
    """With a new name for the rows, a coordinator could begin their budget again."""
    assert parse_policy(build_policy("max_epsilon = 1\ndelta = 1e-6", 'a "ward" \\')).data_set == 'a "ward" \\'
    for line in ('data_set = "fresh"', '"data_set" = "fresh"', "version = 1"):
        with pytest.raises(UsageError):
            parse_policy(build_policy(f"max_epsilon = 1\ndelta = 1e-6\n{line}", "wards"))
