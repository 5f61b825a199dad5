"""``hedgerow identity`` and ``hedgerow roster``: from new keys to a roster that every party can compare."""

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
        return self.run("identity", "new", name, "--folder", str(self.folder / folder), *options)

    def build(self, out: str, *parties: Any, previous: str | None = None) -> Any:
        coordinator, *sites = (party["public_file"] for party in parties)
        follows = [] if previous is None else ["--previous", str(self.folder / previous)]
        out = str(self.folder / out)
        return self.run("roster", "build", "--coordinator", coordinator, *sites, *follows, "--out", out)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_from_keys_to_a_roster(desk: Desk) -> None:
    """Every party computes the fingerprint that the builder printed, and its own private file fits the roster."""
    parties = [desk.new("hub", "--coordinator"), desk.new("north"), desk.new("south")]
    built = desk.build("roster.toml", *parties)
    assert built["epoch"] == 1 and built["changes"] == {}
    roster = read_roster(desk.folder / "roster.toml")
    assert built["fingerprint"] == roster.fingerprint()
    assert desk.run("roster", "show", built["file"])["fingerprint"] == built["fingerprint"]
    for party, pinned in zip(parties, (roster.coordinator, *roster.sites), strict=True):
        assert read_private(Path(party["private_file"])).public == pinned
        assert pinned.fingerprint() == party["fingerprint"]


def test_both_files_of_a_party_show_the_same(desk: Desk) -> None:
    """And neither shows a secret."""
    party = desk.new("north")
    shown = [desk.run("identity", "show", party[name]) for name in ("private_file", "public_file")]
    assert shown[0] == shown[1] == {name: party[name] for name in shown[0]}
    secret = json.loads(Path(party["private_file"]).read_text())
    assert secret["identity_seed"] not in json.dumps(shown)


def test_renewal_and_removal_are_a_new_epoch(desk: Desk) -> None:
    """Who joined, left or has new keys is named, so that nobody is added in silence."""
    hub, north, south, east = desk.new("hub", "--coordinator"), *(desk.new(name) for name in ("north", "south", "east"))
    first = desk.build("first.toml", hub, north, south)
    renewed = desk.new("north", folder="renewed")
    second = desk.build("second.toml", hub, renewed, east, previous="first.toml")
    assert second["epoch"] == 2 and second["fingerprint"] != first["fingerprint"]
    assert second["changes"] == {"joined": ["east"], "left": ["south"], "renewed": ["north"]}


def test_people_can_read_it(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has the fingerprints of all, and says what is to be done with the files."""
    parties = [desk.new("hub", "--coordinator"), desk.new("north")]
    built = desk.build("roster.toml", *parties)
    capsys.readouterr()
    assert main(["roster", "show", built["file"]]) == 0
    text = capsys.readouterr().out
    assert all(value["fingerprint"] in text for value in (built, *parties))
    assert main(["identity", "new", "east", "--folder", str(desk.folder)]) == 0
    assert "phone" in " ".join(capsys.readouterr().err.split())


def test_a_roster_says_how_many_rows_a_site_has(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """What the organiser declares is what every party reads, in the fingerprint and in words."""
    hub, north, south = (desk.new(*who) for who in (("hub", "--coordinator"), ("north",), ("south",)))
    build = ["roster", "build", "--coordinator", hub["public_file"], north["public_file"], south["public_file"]]
    plain = desk.run(*build, "--out", str(desk.folder / "plain.toml"))
    file = str(desk.folder / "rows.toml")
    built = desk.run(*build, "--out", file, "--max-rows", "north=5000")
    assert built["fingerprint"] != plain["fingerprint"]
    assert [site.get("max_rows") for site in desk.run("roster", "show", file)["sites"]] == [5000, None]
    assert main(["roster", "show", file]) == 0
    assert "north 5,000" in capsys.readouterr().out
    for wrong in ("north", "north=0", "north=-1", "west=5", "north=1e3"):
        assert main([*build, "--out", str(desk.folder / "no.toml"), "--max-rows", wrong]) == 2
    assert not (desk.folder / "no.toml").exists()


def test_a_file_in_the_wrong_place_is_named(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """Who mixes files up reads which file it is, of which kind, and where it belongs."""
    hub, north = desk.new("hub", "--coordinator")["public_file"], desk.new("north")["public_file"]
    for sites, coordinator, named, code in (
        ([north, hub], hub, "hub.public.toml", "roster-file"),
        ([north], north, "north.public.toml", "roster-file"),
        ([north], str(desk.folder / "rostr.toml"), "rostr.toml", "identity-not-found"),
    ):
        out = str(desk.folder / "roster.toml")
        assert main(["roster", "build", *sites, "--coordinator", coordinator, "--out", out]) == 2
        said = "".join(capsys.readouterr().err.split())
        assert named in said and f"({code},exitcode2)" in said
    with pytest.raises(UsageError, match="public file") as refused:
        read_private(Path(north))
    assert "NAME.private.json" in refused.value.remedy
