"""``hedgerow study keys`` and ``study roster``: from new keys to a roster that every party can compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hedgerow.cli.main import main
from hedgerow.errors import UsageError
from hedgerow.transport.identities import read_private, read_roster


class Desk:
    """Runs commands in a folder and reads their JSON."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def run(self, *arguments: str) -> Any:
        self._capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def new(self, name: str, *options: str, folder: str = ".") -> Any:
        (self.folder / folder).mkdir(exist_ok=True)
        return self.run("study", "keys", name, "--folder", str(self.folder / folder), *options)

    def build(self, out: str, *parties: Any, previous: str | None = None) -> Any:
        files = [party["public_file"] for party in parties]
        follows = [] if previous is None else ["--previous", str(self.folder / previous)]
        out = str(self.folder / out)
        return self.run("study", "roster", *files, *follows, "--out", out)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_from_keys_to_a_roster(desk: Desk) -> None:
    """Every party computes the fingerprint that the builder printed, and its own private file fits the roster."""
    parties = [desk.new("hub", "--coordinator"), desk.new("north"), desk.new("south")]
    built = desk.build("roster.toml", *parties)
    assert built["epoch"] == 1 and built["changes"] == ""
    roster = read_roster(desk.folder / "roster.toml")
    assert built["fingerprint"] == roster.fingerprint()
    assert desk.run("study", "roster", built["file"])["fingerprint"] == built["fingerprint"]
    for party, pinned in zip(parties, (roster.coordinator, *roster.sites), strict=True):
        assert read_private(Path(party["private_file"])).public == pinned
        assert pinned.fingerprint() == party["fingerprint"]


def test_no_secret_is_printed(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Who pastes what the command says into a mail gives nothing away."""
    party = desk.new("north")
    secret = json.loads(Path(party["private_file"]).read_text())
    assert secret["identity_seed"] not in json.dumps(party) and secret["tls_key"] not in json.dumps(party)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_the_roster_is_the_same_in_any_order_of_files(desk: Desk, order: tuple[int, ...]) -> None:
    """Each file says its party's role, so that nobody sorts files by hand."""
    parties = [desk.new("hub", "--coordinator"), desk.new("north"), desk.new("south"), desk.new("w", "--monitor")]
    first = desk.build("first.toml", *parties)
    again = desk.build("again.toml", *(parties[number] for number in order))
    assert {**again, "file": None} == {**first, "file": None}
    assert [party["role"] for party in first["parties"]] == ["coordinator", "site", "site", "monitor"]


def test_renewal_and_removal_are_a_new_epoch(desk: Desk) -> None:
    """Who joined, left or has new keys is named, so that nobody is added in silence."""
    hub, north, south, east = desk.new("hub", "--coordinator"), *(desk.new(name) for name in ("north", "south", "east"))
    first = desk.build("first.toml", hub, north, south)
    renewed = desk.new("north", folder="renewed")
    second = desk.build("second.toml", hub, renewed, east, previous="first.toml")
    assert second["epoch"] == 2 and second["fingerprint"] != first["fingerprint"]
    assert set(second["changes"].split(", ")) == {"site east comes", "site south goes", "site north has new keys"}


def test_people_can_read_it(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has the fingerprints of all, and says what is to be done with the files."""
    parties = [desk.new("hub", "--coordinator"), desk.new("north")]
    built = desk.build("roster.toml", *parties)
    capsys.readouterr()
    assert main(["study", "roster", built["file"]]) == 0
    text = capsys.readouterr().out
    assert all(value["fingerprint"] in text for value in (built, *parties))
    assert main(["study", "keys", "east", "--folder", str(desk.folder)]) == 0
    assert "phone" in " ".join(capsys.readouterr().err.split())


def test_a_roster_says_how_many_rows_a_site_has(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """What the organiser declares is what every party reads, in the fingerprint and in words."""
    hub, north, south = (desk.new(*who) for who in (("hub", "--coordinator"), ("north",), ("south",)))
    build = ["study", "roster", hub["public_file"], north["public_file"], south["public_file"]]
    plain = desk.run(*build, "--out", str(desk.folder / "plain.toml"))
    file = str(desk.folder / "rows.toml")
    built = desk.run(*build, "--out", file, "--max-rows", "north=5000")
    assert built["fingerprint"] != plain["fingerprint"]
    assert [site["max_rows"] for site in desk.run("study", "roster", file)["parties"]] == [None, 5000, None]
    assert main(["study", "roster", file]) == 0
    assert "5,000" in capsys.readouterr().out
    for wrong in ("north", "north=0", "north=-1", "west=5", "north=1e3"):
        assert main([*build, "--out", str(desk.folder / "no.toml"), "--max-rows", wrong]) == 2
    assert not (desk.folder / "no.toml").exists()


def test_a_file_in_the_wrong_place_is_named(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Who mixes files up reads which file it is, of which kind, and where it belongs."""
    hub, north = desk.new("hub", "--coordinator")["public_file"], desk.new("north")["public_file"]
    for files, named, code in (
        ([north, hub, hub], "hub(coordinator)", "roster-file"),
        ([north], "north(site)", "roster-file"),
        ([north, str(desk.folder / "rostr.toml")], "rostr.toml", "identity-not-found"),
        ([str(desk.folder / "rostr.toml")], "rostr.toml", "identity-not-found"),
    ):
        out = str(desk.folder / "roster.toml")
        assert main(["study", "roster", *files, "--out", out]) == 2
        said = "".join(capsys.readouterr().err.split())
        assert named in said and f"({code},exitcode2)" in said
    with pytest.raises(UsageError, match="public file") as refused:
        read_private(Path(north))
    assert "NAME.private.json" in refused.value.remedy
