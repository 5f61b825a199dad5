"""Runs whose messages are files: every process ends between two steps, and people carry what lies in folders."""

from __future__ import annotations

import math
import os
import shutil
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import __version__
from hedgerow.app.inputs import read_plan
from hedgerow.carriers import read_coordinator_file, read_site_file
from hedgerow.carriers.files import CarriedRun, FolderCarrier, Replay
from hedgerow.carriers.handing import HandedBack
from hedgerow.carriers.site import LOG_FILE, LinkStore, check_site
from hedgerow.cli.main import main
from hedgerow.client.state import OPEN, RUN_ROWS, NodeStore, OwnerDesk
from hedgerow.codec import head
from hedgerow.errors import PlanError
from hedgerow.models.model import Model
from hedgerow.plugins import describe_plugin, load_plugin
from hedgerow.protocol.messages import MessageKind
from hedgerow.transport.carrier import Waiting
from hedgerow.transport.envelope import Envelope, EnvelopeKind, parse, sign
from hedgerow.transport.identities import Role, build_roster, new_identity, read_private
from tests.carriers.conftest import Builder, Federation
from tests.plugins.test_plugin_loading import OBLIVIOUS, forget
from tests.ports import hold_port

CHECK = Path(__file__).parents[2] / "deploy" / "airlock-check"
DAYS = {"join_timeout": 1e6, "round_timeout": 1e6, "idle_timeout": 2e6}


class Airlock:
    """The folders of a federation, and the commands that its parties type."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.folders = {name: federation.folder / f"{name}-airlock" for name in ("coordinator", *federation.sites)}
        for folder in self.folders.values():
            folder.mkdir()

    def party(self, way: str, name: str) -> int:
        return main(["carry", way, str(self.folders[name]), "--as", self.federation.path(f"{name}.toml")])

    def carry(self, source: str, target: str, ending: str) -> None:
        for path in self.folders[source].glob(f"*.{ending}"):
            shutil.copy(path, self.folders[target])

    def step(self, *without: str) -> None:
        """Requests to the sites, and their answers back; every command ends well."""
        assert self.party("out", "coordinator") == 0
        for site in self.federation.sites:
            if site not in without:
                self.carry("coordinator", site, "request")
                assert self.party("in", site) == self.party("out", site) == 0
                self.carry(site, "coordinator", "reply")
        assert self.party("in", "coordinator") == 0

    def files(self, name: str, ending: str) -> list[Path]:
        return sorted(self.folders[name].glob(f"*.{ending}"))

    @property
    def is_done(self) -> bool:
        return (self.federation.folder / "model.json").exists()


@pytest.fixture
def airlock(in_files: Builder) -> Airlock:
    return Airlock(in_files(**DAYS))


@pytest.mark.slow
def test_a_run_by_files_makes_the_local_engines_model(airlock: Airlock) -> None:
    """Two rounds are nine files to a site and eight back; each has a page with its digest, and none can be read."""
    while not airlock.is_done:
        airlock.step()
    federation = airlock.federation
    assert airlock.party("out", "coordinator") == 0
    for site in federation.sites:
        airlock.carry("coordinator", site, "request")
        assert airlock.party("in", site) == 0
    requests = [path for path in airlock.files("coordinator", "request") if path.name.startswith("site-0-")]
    replies = airlock.files("site-0", "reply")
    assert [len(requests), len(replies)] == [9, 8]
    for path in requests + replies:
        page = path.with_name(f"{path.name}.txt").read_text(encoding="utf-8")
        assert sha256(path.read_bytes()).hexdigest() in page and __version__ in page
    plan = read_plan(federation.path("plan.toml"))
    last = replies[-1].with_name(f"{replies[-1].name}.txt").read_text(encoding="utf-8")
    assert plan.digest in last and f"epsilon {plan.privacy.epsilon:g}" in last
    for path in requests[1:] + replies:
        assert not any(head(kind) in path.read_bytes() for kind in MessageKind)
    assert federation.model() == federation.local_model()
    assert Model.load(federation.path("model.json")).report.made_in == "files"
    # Nothing that opens what was carried is left.
    noted = (federation.folder / "model.json.journal.carried").read_bytes()
    assert not any(path.read_bytes()[-64:] in noted for path in replies)


@pytest.mark.slow
def test_a_plug_in_is_carried_out_by_files(in_files: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies and the coordinator's file name it, and nothing else does: the local engine's model all the same."""
    monkeypatch.syspath_prepend(str(OBLIVIOUS.parent))
    forget()
    try:
        line = describe_plugin(load_plugin("oblivious"))
        airlock = Airlock(in_files(algorithm="oblivious", n_trees=2, **DAYS))
        forget()
        for name in ("policy.toml", "coordinator.toml"):
            with (airlock.federation.folder / name).open("a", encoding="ascii") as file:
                file.write(f'plugins = ["{line}"]\n')
        while not airlock.is_done:
            airlock.step()
        assert airlock.federation.model() == airlock.federation.local_model()
    finally:
        forget()


@pytest.mark.slow
def test_each_file_that_is_not_right_is_refused_by_its_name(
    airlock: Airlock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Changed, cut off, swapped or out of its turn, at either end; what is right beside it is taken all the same."""
    refused = 8
    assert airlock.party("out", "coordinator") == 0
    first, other, _ = airlock.files("coordinator", "request")
    place = airlock.folders["site-0"] / first.name
    for wrong in (flip(first.read_bytes()), first.read_bytes()[:-9], other.read_bytes(), b""):
        place.write_bytes(wrong)
        assert airlock.party("in", "site-0") == refused
        said = capsys.readouterr().err.replace("\n", "").replace(" ", "")
        assert "carried-file" in said and first.name in said
    airlock.step()
    # The second request was lost, and the third is there.
    reply, stranger = airlock.files("coordinator", "reply")[:2]
    whole = reply.read_bytes()
    assert airlock.party("out", "coordinator") == 0
    second = airlock.files("coordinator", "request")[1]
    (airlock.folders["site-0"] / f"site-0-{number_of(second) + 1}.request").write_bytes(second.read_bytes()[:-1])
    assert airlock.party("in", "site-0") == refused
    for wrong in (flip(whole), whole[:40], stranger.read_bytes()):
        reply.write_bytes(wrong)
        assert airlock.party("in", "coordinator") == refused
        assert reply.name in capsys.readouterr().err.replace("\n", "").replace(" ", "")
    reply.write_bytes(whole)
    assert airlock.party("in", "coordinator") == 0 and "Taken before: 3" in capsys.readouterr().err
    # The site's own key signs another answer to the same file, as after a backup of its disk was restored.
    answer, key = parse(HandedBack.from_bytes(whole).reply), airlock.federation.path("site-0.private.json")
    again = sign(replace(answer, body=answer.body + b"."), read_private(Path(key)).seed)
    reply.write_bytes(HandedBack(again).to_bytes())
    assert airlock.party("in", "coordinator") == refused and reply.name in capsys.readouterr().err.replace("\n", "")


def flip(data: bytes) -> bytes:
    """The data with one bit changed in the middle."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


@pytest.mark.slow
def test_a_file_that_is_asked_for_twice_is_the_same_file(airlock: Airlock) -> None:
    """A lost disk costs another `carry out`; nothing is drawn, masked or answered a second time."""
    for _ in range(5):
        airlock.step()
    assert airlock.party("out", "coordinator") == 0
    airlock.carry("coordinator", "site-1", "request")
    assert airlock.party("in", "site-1") == airlock.party("out", "site-1") == 0
    before = {
        path: path.read_bytes()
        for path in (*airlock.files("coordinator", "request"), *airlock.files("site-1", "reply"))
    }
    for path in before:
        path.unlink()
    assert airlock.party("out", "coordinator") == 0
    airlock.carry("coordinator", "site-1", "request")
    assert airlock.party("in", "site-1") == airlock.party("out", "site-1") == 0
    again = (*airlock.files("coordinator", "request"), *airlock.files("site-1", "reply"))
    assert {path: path.read_bytes() for path in again}.items() <= before.items() and len(again) == 4


@pytest.mark.slow
def test_a_site_whose_disk_never_comes_back_is_not_waited_for_without_end(
    in_files: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the plan's time the run goes on without it, and its late answer changes nothing."""
    airlock = Airlock(in_files(n_sites=4, **DAYS))
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    for _ in range(4):
        airlock.step()
    while not airlock.is_done:
        now[0] += 2e6
        airlock.step("site-3")
    assert airlock.federation.survivors() == [airlock.federation.sites[:3]] * 2


class Killed(BaseException):
    """The process of a command is gone."""


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [0, 2, 4])
def test_a_site_that_is_killed_over_its_answer_is_asked_anew(
    airlock: Airlock, monkeypatch: pytest.MonkeyPatch, n_steps: int
) -> None:
    """In its greeting, too, which begins the set-up: the others, who have answered it, go on with another one."""
    for _ in range(n_steps):
        airlock.step()
    assert airlock.party("out", "coordinator") == 0
    airlock.carry("coordinator", "site-1", "request")
    save = LinkStore.save

    def die(store: LinkStore, link: Any) -> None:
        if link.reply is not None:
            raise Killed
        save(store, link)

    with monkeypatch.context() as patch:
        patch.setattr(LinkStore, "save", die)
        with pytest.raises(Killed):
            airlock.party("in", "site-1")
    while not airlock.is_done:
        airlock.step()
    assert airlock.federation.model() == airlock.federation.local_model()


@pytest.mark.slow
def test_an_owner_takes_rows_back_until_a_sum_was_masked(airlock: Airlock) -> None:
    """A start reads the table anew while nothing of the run was answered. Then rows are held, and no table is needed:
    the owner is not told of other rows than those in the model."""
    federation = airlock.federation
    table, file = federation.folder / "site-0.csv", federation.folder / "site-0.toml"
    state = federation.folder / "site-0-state"

    right, expected = table.read_text(encoding="ascii"), federation.local_model()
    table.write_text("".join(right.splitlines(keepends=True)[:51]), encoding="ascii")
    airlock.step()
    table.write_text(right, encoding="ascii")
    check_site(read_site_file(file))
    assert "100 of 100" in (state / LOG_FILE).read_text(encoding="utf-8")
    while not has_masked(state):
        airlock.step()
    table.unlink()
    (state / LOG_FILE).unlink()
    check_site(read_site_file(file))
    said = (state / LOG_FILE).read_text(encoding="utf-8")
    assert "--leave" in said and "site-0.csv" not in said
    while not airlock.is_done:
        airlock.step()
    assert (federation.model(), federation.survivors()) == (expected, [federation.sites] * 2)


@pytest.mark.slow
def test_a_sum_by_files_is_of_the_rows_that_the_table_has_then(airlock: Airlock) -> None:
    """Carried in by nobody who reads what is said, rows that were taken out since the file before are in no sum, and
    codes that the disk has damaged are read anew; what becomes of the table later changes nothing."""
    federation = airlock.federation
    table, state = federation.folder / "site-0.csv", federation.folder / "site-0-state"
    right, expected = table.read_text(encoding="ascii").splitlines(keepends=True), federation.local_model()
    n_steps = 0
    while not has_masked(state):
        n_steps += 1
        # All rows but some, and others each time, until the file that asks for the first sum.
        n_left_out = 7 * n_steps if n_steps < 5 else 0
        table.write_text("".join(right[: len(right) - n_left_out]), encoding="ascii")
        for codes in state.glob(f"{RUN_ROWS}/*/labels.npy"):
            codes.write_bytes(b"")
        airlock.step()
    assert n_steps == 5
    table.write_text("".join(right[:40]), encoding="ascii")
    while not airlock.is_done:
        airlock.step()
    assert (federation.model(), federation.survivors()) == (expected, [federation.sites] * 2)


def has_masked(state: Path) -> bool:
    """Whether a site's node has masked a sum of the run that is open."""
    with closing(NodeStore(state)) as store:
        return any(map(store.has_masked, store.run_ids(OPEN)))


@pytest.mark.slow
def test_a_site_that_asks_its_owner_is_asked_again_when_time_has_passed(
    airlock: Airlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is that it asks; approved, it takes part from the next file on."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    folder = airlock.federation.folder
    (folder / "asks.toml").write_text((folder / "policy.toml").read_text() + 'ask = "always"\n')
    place = folder / "site-0.toml"
    place.write_text(place.read_text().replace("policy.toml", "asks.toml"))
    airlock.step()
    with closing(OwnerDesk(folder / "site-0-state")) as desk:
        question = desk.pending()
        assert question is not None
        desk.answer(question.id, approve=True)
    while not airlock.is_done:
        now[0] += 3600.0
        airlock.step()
    assert airlock.federation.model() == airlock.federation.local_model()


@pytest.mark.slow
def test_a_model_is_evaluated_by_files_and_paid_for_once(airlock: Airlock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local engine's numbers and account; its end begins no other, and it is not written over its own model."""
    federation = airlock.federation
    while not airlock.is_done:
        airlock.step()
    airlock.step()
    place = Path(federation.path("coordinator.toml"))
    evaluation = (federation.folder / "evaluation.toml").read_text()
    place.write_text(evaluation.replace("evaluated.json", "model.json"))
    assert airlock.party("out", "coordinator") == 2
    place.write_text(evaluation)
    for path in (path for folder in airlock.folders.values() for path in folder.iterdir()):
        path.unlink()
    now = time.time() + 3600.0
    monkeypatch.setattr(time, "time", lambda: now)
    while not (federation.folder / "evaluated.json").exists():
        airlock.step()
    federation.assert_evaluated()
    n_files = len(airlock.files("coordinator", "request"))
    airlock.step()
    airlock.step()
    assert len(airlock.files("coordinator", "request")) == n_files + len(federation.sites), "They are told of its end."


@pytest.mark.slow
def test_a_run_that_was_given_up_keeps_nothing_that_opens_its_answers(
    airlock: Airlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few sites came in the plan's time: two answers are on the disk, and neither they nor their keys stay."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    airlock.step("site-2")
    code = 0
    while not code:
        now[0] += 2e6
        code = airlock.party("in", "coordinator")
    noted = (airlock.federation.folder / "model.json.journal.carried").read_bytes()
    replies = airlock.files("coordinator", "reply")
    assert len(replies) == 2 and not any(path.read_bytes()[-64:] in noted for path in replies)
    assert airlock.party("in", "coordinator") == 0, "It is over, and does not fail again."


class Pause:
    """In place of the operator's file: it comes when it has been looked for so many times."""

    def __init__(self, n_before: float) -> None:
        self.n_before, self.n_looks = n_before, 0

    def exists(self) -> bool:
        self.n_looks += 1
        return self.n_looks >= self.n_before


@pytest.mark.slow
def test_a_run_that_is_paused_while_it_is_played_goes_on_where_it_was(
    airlock: Airlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's word is not noted: the next process sends what it would have sent, and nothing is wiped."""
    assert airlock.party("out", "coordinator") == 0
    never = Pause(math.inf)
    with monkeypatch.context() as patch:
        patch.setattr("hedgerow.app.coordinator.pause_file", lambda journal: never)
        assert airlock.party("out", "coordinator") == 0
    with monkeypatch.context() as patch:
        patch.setattr("hedgerow.app.coordinator.pause_file", lambda journal: Pause(never.n_looks))
        assert airlock.party("out", "coordinator") != 0
    for _ in range(8):
        airlock.step()
    assert airlock.federation.model() == airlock.federation.local_model()


@pytest.mark.slow
def test_sites_by_files_and_sites_by_grpc_train_together(airlock: Airlock) -> None:
    """One coordinator listens for a site and looks through a folder for two; it is killed once, and goes on."""
    federation = airlock.federation
    held, address = hold_port()
    with open(federation.path("coordinator.toml"), "a", encoding="ascii") as file:
        file.write(f'by_files = ["site-0", "site-1"]\nlisten = "{address}"\n')

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "hedgerow", *arguments])

    coordinating = ("carry", "out", str(airlock.folders["coordinator"]), "--as", federation.path("coordinator.toml"))
    options = {"plan": "plan.toml", "roster": "roster.toml", "policy": "policy.toml", "identity": "site-2.private.json"}
    named = [f"--{name}={federation.path(path)}" for name, path in options.items()]
    state = f"--state={federation.path('site-2-state')}"
    coordinator = start(*coordinating)
    node = start("node", federation.path("site-2.csv"), *named, state, "--connect", address)
    is_killed = False
    try:
        while coordinator.poll() is None:
            for site in federation.sites[:2]:
                airlock.carry("coordinator", site, "request")
                assert airlock.party("in", site) == airlock.party("out", site) == 0
                airlock.carry(site, "coordinator", "reply")
            if not is_killed and len(airlock.files("site-0", "request")) == 6:
                coordinator.kill()
                coordinator.wait()
                is_killed, coordinator = True, start(*coordinating)
        assert coordinator.wait() == node.wait() == 0 and is_killed
    finally:
        coordinator.kill()
        node.kill()
        held.close()
    assert federation.model() == federation.local_model()


@pytest.mark.slow
@pytest.mark.long
def test_the_check_that_is_run_by_hand_works() -> None:
    """Three sites by files as commands, with kills and wrong files, end with the local engine's model."""
    environment = {**os.environ, "HEDGEROW": str(Path(sys.executable).with_name("hedgerow"))}
    done = subprocess.run([CHECK], env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert "back: 8 files" in done.stdout


def test_a_plan_for_machines_is_no_plan_for_people(in_files: Builder) -> None:
    """A minute for an answer would leave every site out; said before the run begins, and nothing is written."""
    federation = in_files()
    run = CarriedRun(read_coordinator_file(Path(federation.path("coordinator.toml"))))
    with pytest.raises(PlanError) as refused:
        run.begin()
    assert refused.value.code == "plan-field" and not run.is_begun
    run.close()
    assert main(["carry", "in", str(federation.folder), "--as", federation.path("coordinator.toml")]) == 2


IDENTITY = new_identity("hub", Role.COORDINATOR, b"a" * 32)
ROSTER = build_roster(IDENTITY.public, [new_identity(name, Role.SITE, name.encode() * 32).public for name in "bcd"])


def test_what_the_carrier_of_a_folder_puts_there_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links in the names of files to come write over nothing elsewhere, whenever they are put there, and no pipe is
    waited for.
    """
    box, elsewhere = tmp_path / "box", tmp_path / "private.json"
    box.mkdir()
    elsewhere.write_text("a key")
    for name in ("b-1.request", "b-1.request.txt"):
        (box / name).symlink_to(elsewhere)
    os.mkfifo(box / "b-1.reply")
    (box / "b-2.reply").symlink_to(box / "nothing")
    (box / "b-3.reply").mkdir()
    os.mkfifo(box / "b-2.request")
    # Who writes into a pipe that nobody reads waits without end.
    reader = os.open(box / "b-2.request", os.O_RDONLY | os.O_NONBLOCK)
    remove = Path.unlink

    def put_back(path: Path, missing_ok: bool = False) -> None:
        was_link = path.is_symlink()
        remove(path, missing_ok)
        if was_link:
            path.symlink_to(elsewhere)

    monkeypatch.setattr(Path, "unlink", put_back)
    request = Envelope(EnvelopeKind.GREETING, "b", bytes(32), 1, bytes(32), bytes(32))
    carrier = FolderCarrier(ROSTER, ["b"], box)
    (number,) = carrier.push([(0, sign(request, IDENTITY.seed))])
    carrier.push([(0, sign(replace(request, number=2), IDENTITY.seed))])
    os.close(reader)
    assert elsewhere.read_text() == "a key"
    written = [box / f"b-{number}.request{page}" for number in (1, 2) for page in ("", ".txt")]
    assert [stat.S_ISREG(path.lstat().st_mode) for path in written] == [True] * 4
    assert number is not None and carrier.pull([number]) == []


def test_a_site_answers_in_no_others_place(tmp_path: Path) -> None:
    """Its courier has read the other's request, which lies in the same folder: the other's link does not end by it."""
    carrier = FolderCarrier(ROSTER, ["b", "c"], tmp_path)
    requests = [Envelope(EnvelopeKind.GREETING, site, bytes(32), 1, bytes(32), bytes(32)) for site in "bc"]
    numbers = carrier.push([(node, sign(each, IDENTITY.seed)) for node, each in enumerate(requests)])

    def reply(site: str, name: str) -> bytes:
        answer = replace(requests[0], kind=EnvelopeKind.REPLY, site=site, request=requests[0].digest)
        data = sign(answer, site.encode() * 32)
        (tmp_path / name).write_bytes(HandedBack(data).to_bytes())
        return data

    reply("c", "c-1.reply")
    assert carrier.pull([number or "" for number in numbers]) == []
    true = reply("b", "b-1.reply")
    assert [found.data for found in carrier.pull([number or "" for number in numbers])] == [true]


@given(
    st.lists(st.binary(min_size=32, max_size=32), max_size=4), st.lists(st.binary(min_size=32, max_size=32), max_size=4)
)
@settings(max_examples=30, deadline=None)
def test_what_is_drawn_follows_from_all_that_was_noted(one: list[bytes], two: list[bytes]) -> None:
    """Played again, a run draws the same keys and noise; over other answers, others: no noise covers two sums."""
    drawn = [draw_after(noted) for noted in (one, one, two)]
    assert drawn[0] == drawn[1]
    assert (drawn[0] == drawn[2]) == (one == two)


def draw_after(requests: list[bytes]) -> bytes:
    replies = [
        sign(Envelope(EnvelopeKind.REPLY, "b", bytes(32), 1, bytes(32), request), IDENTITY.seed) for request in requests
    ]
    replay = Replay(ROSTER, b"s" * 32, [(0.0, b""), *((1.0, reply) for reply in replies)])
    replay.pull([])
    drawn = replay.entropy(40)
    assert replay.entropy(40) != drawn
    with pytest.raises(Waiting):
        for _ in range(100):
            replay.sleep(1.0)
    assert replay.push([(0, replies[0] if replies else b"")]) == [None], "What comes after its end was not sent."
    return drawn
