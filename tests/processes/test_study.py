"""Studies as their parties carry them out: invitations, words, runs, by the commands, in processes that are killed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow import __version__
from hedgerow.app.inputs import build_policy
from hedgerow.cli.main import main
from hedgerow.models.model import Model
from hedgerow.plan.plan import parse_plan
from hedgerow.transport.identities import read_roster
from tests.wards import SEED, forget_place

if TYPE_CHECKING:
    from conftest import Process, Scene, Theatre

pytestmark = pytest.mark.slow

SITES = tuple(f"site-{number}" for number in range(4))


def command(scene: Scene, *arguments: str, code: int = 0) -> Process:
    """A command that ends by itself."""
    process = scene.start("-".join(re.sub(r"[^a-z]", "", word)[:8] for word in arguments[:3]), *arguments)
    assert process.wait() == code, "".join(process.err)
    return process


def begin(scene: Scene, *more: str) -> None:
    """A study of all sites, its invitations handed over."""
    for leftover in ("roster.toml", "policy.toml"):
        (scene.folder / leftover).unlink()
    command(scene, "study", "new", "wards", "--plan", "plan.toml", "--listen", scene.address)
    command(scene, "study", "invite", *SITES, *more)
    for invitation in (scene.folder / "wards").glob("*.invitation"):
        shutil.copy2(invitation, scene.folder)


def join(scene: Scene, site: str, *more: str, folder: str = "", strike: dict[str, Any] | None = None) -> Process:
    given = [f"--folder={folder}"] if folder else []
    if "--policy" not in more:
        # These plans have the coordinator's noise, whose model can be made again, and no invitation grants that.
        own = scene.folder / f"{site}.policy.toml"
        content = json.loads((scene.folder / f"{site}.invitation").read_text(encoding="utf-8"))
        if not own.exists():
            noise = parse_plan(content["plan"]).privacy.noise
            own.write_text(build_policy(content["policy"], site, noise), encoding="utf-8")
        given += ["--policy", own.name]
    return scene.start(
        f"join-{site}{folder}", "join", f"{site}.invitation", "--data", f"{site}.csv", "--yes", *given, *more,
        strike=strike,
    )  # fmt: skip


def is_fetched(process: Process) -> bool:
    """Whether a site has the model's file, and waits for the next run."""
    return process.says("waits for the next run") and process.says("The model is in")


def listed(scene: Scene) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("".join(command(scene, "study", "list", "--json").out))
    return found


def words_at(process: Process) -> str:
    """What a party that has enrolled shows; fails when it has ended instead."""
    assert process.code in (None, -signal.SIGKILL), "".join(process.err)
    return "".join(re.findall(r"Your words: ([a-z ]+)", "".join(process.err)))


def compare(scene: Scene, joining: dict[str, Process]) -> None:
    """The calls: each party reads its words, and each end is told what the other has read."""
    for party, process in joining.items():
        scene.wait_until(lambda process=process: words_at(process) != "")  # type: ignore[misc]
        (seen,) = [one["words"] for one in listed(scene)["parties"] if one["name"] == party]
        command(scene, "study", "confirm", f"{party}={words_at(process)}")
        # By the command that the party's own end prints.
        scene.wait_until(lambda process=process: confirming(process) != "")  # type: ignore[misc]
        command(scene, *shlex.split(confirming(process)), seen)


def confirming(process: Process) -> str:
    """What confirms a party's words, as its own end has printed it; "" before that."""
    return "".join(re.findall(r"Once they are the same: hedgerow (join .*?--confirm) ", spoken_by(process))[:1])


def spoken_by(process: Process) -> str:
    """What a process has said, as one line."""
    return " ".join("".join(process.err).split())


def logged(process: Process) -> list[dict[str, str]]:
    """What a command with `--log-format json` has said; fails for a line that is no object of the log."""
    lines = [json.loads(line) for line in process.err]
    assert lines and all({"time", "level", "run", "site", "message"} <= set(line) for line in lines)
    return lines


def from_invitations_to_a_model(scene: Scene) -> None:
    """Killed in the middle of everything, coordinator and sites go on, and the model is that of `hedgerow train`."""
    begin(scene, "--monitor", "watch")
    serve = ("study", "serve", "--seed", SEED)
    hub = scene.start("serve", *serve)
    # Between the roster and the run: later, the others would go on without it.
    strikes = {"site-2": {"signal": signal.SIGKILL, "kind": "INVITATION", "number": 1, "moment": "before"}}
    joining = {site: join(scene, site, strike=strikes.get(site)) for site in SITES}
    scene.wait_until(lambda: all(words_at(process) for process in joining.values()))
    for process in (hub, joining["site-1"]):
        process.signal(signal.SIGKILL)
        process.wait()
    words = words_at(joining["site-1"])
    as_json = ("--log-format", "json")
    hub, joining["site-1"] = scene.start("serve", *serve, *as_json), join(scene, "site-1", *as_json)
    in_json = joining["site-1"]
    scene.wait_until(lambda: words_at(joining["site-1"]) == words)
    command(scene, "join", "watch.invitation", "--confirm", "apple river stone lamp", code=2)
    watching = scene.start("join-watch", "join", "watch.invitation", "--yes", "--json")
    compare(scene, {**joining, "watch": watching})
    assert joining["site-2"].wait() == -signal.SIGKILL and joining["site-2"].says("The roster's words")
    joining["site-2"] = join(scene, "site-2")
    assert hub.wait() == 0, "".join(hub.err)
    scene.wait_until(lambda: all(is_fetched(process) for process in joining.values()))
    model = (scene.folder / "wards" / "run-1" / "model.json").read_bytes()
    sites = [f"--site={site}={site}.csv" for site in SITES]
    command(scene, "train", "plan.toml", *sites, "--seed", "5", "--no-book", "--out", "local.json")
    assert forget_place(model) == forget_place((scene.folder / "local.json").read_bytes())
    for site in SITES:
        (received,) = (scene.folder / f"wards-{site}").glob("model-*.json")
        assert received.read_bytes() == model and received.with_suffix(".report.txt").stat().st_size > 0
    again_and_otherwise(scene, joining)
    assert logged(hub)[0]["site"] == "coordinator"
    assert {line["site"] for line in logged(in_json)} == {"site-1"}
    assert {line["run"] for line in logged(in_json)} - {""} == {line["run"] for line in logged(hub)} - {""} != set()
    said = "".join(hub.err)
    (roster_words,) = set(re.findall(r"roster's words, the same at every party: ([a-z ]+)", said)) or {""}
    rosters = [scene.folder / f"wards-{party}" / "roster.toml" for party in (*SITES, "watch")]
    assert {read_roster(path) for path in rosters} == {read_roster(scene.folder / "wards" / "roster.toml")}
    assert listed(scene)["roster_words"].split()[0] in said.split() and roster_words != ""
    assert main(["study", "roster", str(rosters[0])]) == 0


def is_given_up(scene: Scene, evaluate: tuple[str, ...]) -> None:
    """An evaluation ends for good with one release, which only a new run is counted with: the same command refuses."""
    killed = scene.start("evaluate", *evaluate, strike={"signal": signal.SIGKILL, "writes": 7})
    assert killed.wait() == -signal.SIGKILL
    (journal,) = (scene.folder / "wards" / "run-1").glob("*.evaluation-*.journal")
    parties = {"roster": "wards/roster.toml", "identity": "wards/coordinator.private.json", "listen": scene.address}
    options = [f"--{name}={value}" for name, value in {**parties, "journal": str(journal)}.items()]
    command(scene, "coordinator", "plan.toml", *options, "--out=no.json", "--abort")
    assert command(scene, *evaluate, code=2).error == "journal-given-up"


def again_and_otherwise(scene: Scene, joining: dict[str, Process]) -> None:
    """Nodes that stayed take part in an evaluation and in a second run, and wait while one is ended in between."""
    seed = ("--seed", SEED)
    # The first run took all that the policies allow.
    for site in SITES:
        policy = scene.folder / f"{site}.policy.toml"
        shows = "site_figures = true\n" if site == SITES[0] else ""
        text = policy.read_text(encoding="ascii").replace("max_epsilon = 4", f"{shows}max_epsilon = 99")
        policy.write_text(text, "ascii")
        joining[site].signal(signal.SIGINT)
        assert joining[site].wait() == 130
        joining[site] = join(scene, site, "--held-out", f"{site}-held-out.csv")
    evaluate = ("study", "evaluate", "--epsilon", "1", "--by", "site", "--json", *seed)
    n_trained = len(Model.load(scene.folder / "wards" / "run-1" / "model.json").ledger)
    is_given_up(scene, evaluate)
    evaluated = scene.start("evaluate", *evaluate, "--new-run")
    assert evaluated.wait() == 0, "".join(evaluated.err)
    found = json.loads("".join(evaluated.out))
    # That of the evaluation that was given up, the outline, the detail, and the figures by site.
    assert found["report"]["n_releases"] == n_trained + 4
    assert list(found["groups"]["site"]) == [SITES[0]] and found["sites_left_out"] == list(SITES[1:])
    scene.wait_until(lambda: all(is_fetched(process) for process in joining.values()))
    model = (scene.folder / "wards" / "run-1" / "model.json").read_bytes()
    for site in SITES:
        (received,) = (scene.folder / f"wards-{site}").glob("model-*.json")
        assert received.read_bytes() == model
    second = scene.start("run", "study", "run", *seed, strike={"signal": signal.SIGKILL, "writes": 6})
    assert second.wait() == -signal.SIGKILL
    ended = scene.start("abort", "study", "abort")
    assert ended.wait() == 0, "".join(ended.err)
    scene.wait_until(lambda: all(process.says("stopped-by-operator") for process in joining.values()))
    corrected = (scene.folder / "plan.toml").read_text(encoding="ascii").replace("n_trees = 6", "n_trees = 4")
    (scene.folder / "corrected.toml").write_text(corrected, encoding="ascii")
    third = scene.start("run", "study", "run", "--plan", "corrected.toml", *seed)
    for site in SITES:
        joining[site].signal(signal.SIGINT)
        joining[site].wait()
        joining[site] = join(scene, site, "--plan", "corrected.toml")
    assert third.wait() == 0, "".join(third.err)
    assert [run["state"] for run in listed(scene)["runs"]] == ["finished", "ended", "finished"]
    scene.wait_until(lambda: all(is_fetched(process) for process in joining.values()))
    model = (scene.folder / "wards" / "run-3" / "model.json").read_bytes()
    for site in SITES:
        kept = [path.read_bytes() for path in (scene.folder / f"wards-{site}").glob("model-*.json")]
        assert len(kept) == 2 and model in kept


def a_stolen_invitation(scene: Scene) -> None:
    """Who has copied an invitation comes first: the site is refused by name, and the words give the thief away."""
    begin(scene)
    scene.start("serve", "study", "serve")
    thief = join(scene, "site-0", folder="thief")
    scene.wait_until(lambda: words_at(thief) != "")
    site = join(scene, "site-0")
    assert site.wait() == 8 and site.error == "invitation-used"
    # The operator calls the site at its own number. It has no words to read.
    guessed = command(scene, "study", "confirm", "site-0=apple river stone lamp", code=2)
    assert guessed.error == "words-differ"
    command(scene, "study", "invite", "site-0", "--again")
    shutil.copy2(scene.folder / "wards" / "site-0.invitation", scene.folder)
    again = join(scene, "site-0")
    scene.wait_until(lambda: words_at(again) != "")
    assert words_at(again) != words_at(thief) and (scene.folder / "wards-site-0.1").is_dir()
    compare(scene, {"site-0": again})
    # What the thief holds is worth nothing any more, whatever it is told.
    command(scene, "join", "site-0.invitation", "--confirm", words_at(thief), "--folder=thief", code=2)
    states = {one["name"]: one["state"] for one in listed(scene)["parties"]}
    assert states == {"site-0": "confirmed", **dict.fromkeys(SITES[1:], "invited")}


def an_invitation_that_was_changed(scene: Scene) -> None:
    """Who changed it on its way answers in the coordinator's place: the site's owner hears other words, and stops."""
    begin(scene)
    (scene.folder / "false").mkdir()
    command(scene, "study", "new", "false/wards", "--plan", "plan.toml", "--listen", scene.address, code=2)
    true = json.loads((scene.folder / "site-0.invitation").read_text(encoding="utf-8"))
    # A study of the same name, whose invitation has the true one's secret as well.
    shutil.move(scene.folder / "wards", scene.folder / "true")
    command(scene, "study", "new", "wards", "--plan", "plan.toml", "--listen", scene.address)
    command(scene, "study", "invite", "site-0", "--study", "wards")
    shutil.copy2(scene.folder / "wards" / "site-0.invitation", scene.folder)
    scene.start("false", "study", "serve", "--study", "wards")
    site = join(scene, "site-0")
    scene.wait_until(lambda: words_at(site) != "")
    site.signal(signal.SIGKILL)
    site.wait()
    # The operator of the true study has never seen these, and reads others.
    told = command(scene, "join", "site-0.invitation", "--confirm", "apple river stone lamp", code=2)
    assert told.error == "words-differ"
    assert not (scene.folder / "wards-site-0" / "roster.toml").exists()
    # The true invitation, against the coordinator that answers at its address: not its keys.
    (scene.folder / "site-0.invitation").write_text(json.dumps(true), encoding="utf-8")
    refused = join(scene, "site-0", folder="true-site-0")
    assert refused.wait() == 8 and refused.error == "wrong-coordinator"


def question_of(scene: Scene, site: str) -> str:
    """What the owner of a site is asked, once there is something."""
    asked: list[dict[str, Any]] = []
    scene.wait_until((scene.folder / f"wards-{site}" / "state" / "node.db").exists)

    def is_asked() -> bool:
        found = json.loads("".join(command(scene, "approve", f"wards-{site}", "--json").out))["question"]
        asked.extend([found] if found is not None else [])
        return found is not None

    scene.wait_until(is_asked)
    return str(asked[0]["id"])


def spent(scene: Scene, site: str) -> list[tuple[str, float]]:
    """Of each run, how it stands and what it has cost a site."""
    found = json.loads("".join(command(scene, "ledger", f"{site}-budget.db", "--json").out))
    return [(run["status"], run["epsilon"]) for data_set in found["data_sets"] for run in data_set["runs"]]


def owners_are_asked_and_a_run_is_paused(scene: Scene) -> None:
    """Nodes wait for their owners, killed or not; a run rests between two rounds, and goes on with the same model."""
    policy = 'max_epsilon = 99\ndelta = 1e-6\nnoise = ["server"]\nask = "always"\n'
    (scene.folder / "asks.toml").write_text(policy, encoding="ascii")
    begin(scene, "--policy", "asks.toml")
    seed = ("--seed", SEED)
    hub = scene.start("serve", "study", "serve", *seed)
    joining = {site: join(scene, site) for site in SITES}
    compare(scene, joining)
    questions = {site: question_of(scene, site) for site in SITES}
    scene.wait_until(lambda: all(hub.says(f"{site} asks its owner first") for site in SITES))
    joining["site-1"].signal(signal.SIGKILL)
    joining["site-1"].wait()
    assert command(scene, "approve", "wards-site-0", "0" * 32, code=2).error == "not-asked"
    for site in SITES:
        command(scene, "approve", f"wards-{site}", questions[site])
    joining["site-1"] = join(scene, "site-1")
    assert hub.wait() == 0, "".join(hub.err)
    scene.wait_until(lambda: all(is_fetched(process) for process in joining.values()))
    # The second run: it is paused while its sites ask their owners, and again after some rounds.
    second = scene.start("run", "study", "run", *seed)
    questions = {site: question_of(scene, site) for site in SITES}
    command(scene, "study", "pause")
    assert second.wait() == 0 and second.says("is paused after 0 of")
    assert [run["state"] for run in listed(scene)["runs"]] == ["finished", "paused"]
    assert command(scene, "study", "serve").says("Run 2 is paused")
    for site in SITES[1:]:
        command(scene, "approve", f"wards-{site}", questions[site])
    frozen = {"signal": signal.SIGSTOP, "writes": 6}
    third = scene.start("run", "study", "run", *seed, strike=frozen)
    command(scene, "approve", "wards-site-0", question_of(scene, "site-0"))
    scene.wait_until(lambda: third.is_frozen)
    pausing = scene.start("pause", "study", "pause")
    scene.wait_until((scene.folder / "wards" / "run-2" / "model.json.journal.paused").exists)
    third.signal(signal.SIGCONT)
    assert third.wait() == 0 and pausing.wait() == 0, "".join(third.err)
    scene.wait_until(lambda: all(process.says("has paused the run") for process in joining.values()))
    joining["site-2"].signal(signal.SIGKILL)
    joining["site-2"].wait()
    joining["site-2"] = join(scene, "site-2")
    # Another plan is no way to go on with it.
    corrected = (scene.folder / "plan.toml").read_text(encoding="ascii").replace("n_trees = 6", "n_trees = 4")
    (scene.folder / "corrected.toml").write_text(corrected, encoding="ascii")
    assert command(scene, "study", "run", "--plan", "corrected.toml", code=2).error == "study-run-open"
    fourth = scene.start("run", "study", "run", *seed)
    assert fourth.wait() == 0, "".join(fourth.err)
    models = [(scene.folder / "wards" / f"run-{number}" / "model.json").read_bytes() for number in (1, 2)]
    assert models[0] == models[1]
    assert [run["state"] for run in listed(scene)["runs"]] == ["finished", "finished"]
    for site in SITES:
        (first, cost), (last, again) = spent(scene, site)
        assert first == last == "finished" and cost == again
    assert command(scene, "study", "pause", code=2).error == "study-no-run"


def nodes_that_stay_by_hand(scene: Scene) -> None:
    """Roster and identities made by hand: two runs and an evaluation, and the files of each at every site."""

    def node(site: str) -> Process:
        return scene.node(site, "--held-out", f"{site}-held-out.csv", "--serve", "--out", f"kept-{site}")

    def kept(site: str) -> list[bytes]:
        return [path.read_bytes() for path in (scene.folder / f"kept-{site}").glob("model-*.json")]

    def listens(*arguments: str) -> None:
        given = ("--roster", "roster.toml", "--identity", "hub.private.json", "--listen", scene.address)
        hub = scene.start("hub", *arguments, *given, "--seed", SEED, "--hand-out")
        assert hub.wait() == 0, "".join(hub.err)

    for site in SITES:
        node(site)
    listens("coordinator", "plan.toml", "--out", "model.json")
    model = (scene.folder / "model.json").read_bytes()
    scene.wait_until(lambda: all(kept(site) == [model] for site in SITES))
    scene.nodes["site-1"].signal(signal.SIGKILL)
    scene.nodes["site-1"].wait()
    node("site-1")
    listens("evaluate", "model.json", "--federated", "--epsilon", "1")
    evaluated = (scene.folder / "model.json").read_bytes()
    assert evaluated != model
    scene.wait_until(lambda: all(kept(site) == [evaluated] for site in SITES))
    listens("coordinator", "plan.toml", "--out", "second.json")
    assert (scene.folder / "second.json").read_bytes() == model
    scene.wait_until(lambda: all(is_fetched(scene.nodes[site]) for site in SITES))
    # What was found about it stays on the account of the file that is there.
    assert all(kept(site) == [evaluated] for site in SITES)
    command(scene, "approve", "site-2-state", "--stop")
    assert scene.nodes["site-2"].wait() == 6 and scene.nodes["site-2"].error == "stopped-by-owner"
    unheard = command(scene, "evaluate", "model.json", "--federated", "--site=site-0.csv", "--hand-out", code=2)
    assert unheard.error == "usage"


def who_comes_later(scene: Scene) -> None:
    """A monitor gets in unasked where policies say so; a site where owners have compared fingerprints."""
    policy = 'max_epsilon = 99\ndelta = 1e-6\nnoise = ["server"]\nmonitors = "any"\n'
    (scene.folder / "watched.toml").write_text(policy, encoding="ascii")
    for leftover in ("roster.toml", "policy.toml"):
        (scene.folder / leftover).unlink()
    command(scene, "study", "new", "wards", "--plan", "plan.toml", "--listen", scene.address)

    def invited(*names: str) -> None:
        command(scene, "study", "invite", *names, "--policy", "watched.toml")
        for invitation in (scene.folder / "wards").glob("*.invitation"):
            shutil.copy2(invitation, scene.folder)

    def carried_out() -> Process:
        process = scene.start("run", "study", "run", "--seed", SEED)
        assert process.wait() == 0, "".join(process.err)
        return process

    invited(*SITES[:3])
    hub = scene.start("serve", "study", "serve", "--seed", SEED)
    joining = {site: join(scene, site) for site in SITES[:3]}
    compare(scene, joining)
    assert hub.wait() == 0, "".join(hub.err)
    invited("--monitor", "watch")
    hub = scene.start("serve", "study", "serve")
    compare(scene, {"watch": scene.start("join-watch", "join", "watch.invitation", "--yes", "--json")})
    assert hub.wait() == 0 and hub.says("Run 1 is over"), "".join(hub.err)
    carried_out()
    # What another process writes may be read a moment later.
    scene.wait_until(lambda: all(process.says("monitor watch comes") for process in joining.values()))
    invited("site-3")
    hub = scene.start("serve", "study", "serve")
    # Beside the books of others, who could be the same people by another name, its own is named.
    joining["site-3"] = join(scene, "site-3", "--data-set", "site-3")
    compare(scene, {"site-3": joining["site-3"]})
    assert hub.wait() == 0, "".join(hub.err)
    third = scene.start("run", "study", "run", "--seed", SEED)
    roster = read_roster(scene.folder / "wards" / "roster.toml")
    assert roster.edition == 3 and roster.fingerprint() in " ".join(" ".join(hub.err).split())
    for site in SITES[:3]:
        asked = question_of(scene, site)
        shown = " ".join("".join(command(scene, "approve", f"wards-{site}").out).split())
        assert "site site-3 comes" in shown and roster.fingerprint() in shown
        command(scene, "approve", f"wards-{site}", asked, *(["--deny"] if site == "site-2" else []))
    assert joining["site-2"].wait() == 6 and joining["site-2"].error == "roster-denied"
    # A new roster is nothing that somebody who watches the logs for warnings is called for.
    # A coordinator that ends while a node dials closes the handshake, which is warned of by a code of its own.
    for process in (*joining.values(), third):
        warned = [line for line in process.err if " WARNING " in line and "(tls-refused)" not in line]
        assert not [line for line in warned if "roster" in line]
    scene.wait_until(lambda: third.says("A node that stays asks its owner for a later roster"))
    scene.let_time_pass("site-2")
    # The others have the model; the coordinator would hand it to site-2 for a while.
    staying = ("site-0", "site-1", "site-3")
    model = scene.folder / "wards" / "run-3" / "model.json"
    scene.wait_until(model.is_file)
    kept = [scene.folder / f"wards-{site}" for site in staying]
    scene.wait_until(lambda: all(model.read_bytes() in map(Path.read_bytes, one.glob("model-*.json")) for one in kept))
    assert third.code is None, "".join(third.err)
    assert read_roster(scene.folder / "wards-site-2" / "roster.toml").edition == 2
    assert read_roster(scene.folder / "wards-site-0" / "roster.toml") == roster


def a_roster_slipped_in(scene: Scene) -> None:
    """A coordinator that swaps a site's keys: of the same epoch it is refused, of the next one the owner is asked."""
    policy = scene.folder / "policy.toml"
    policy.write_text(policy.read_text(encoding="ascii") + 'monitors = "any"\n', encoding="ascii")
    node = scene.node("site-0", "--serve")
    for name in ("roster.toml", "policy.toml"):
        shutil.copy2(scene.folder / name, scene.folder / f"kept-{name}")
    (scene.folder / "false").mkdir()
    command(scene, "study", "keys", "site-1", "--folder", "false")
    parties = ["site-0", "false/site-1", "site-2", "site-3", "hub", "watch"]
    build = ["study", "roster", *(f"{party}.public.toml" for party in parties)]
    command(scene, *build, "--out", "same.toml")
    command(scene, *build, "--out", "next.toml", "--previous", "roster.toml")

    def coordinates(roster: str) -> Process:
        given = ("--identity", "hub.private.json", "--listen", scene.address, "--out", f"{roster}.json")
        return scene.start("false", "coordinator", "plan.toml", "--roster", roster, *given)

    hub = coordinates("same.toml")
    # It may be a slip of the coordinator's operator: the node takes no part, warns, and waits for another.
    scene.wait_until(lambda: node.says("roster-mismatch"))
    hub.signal(signal.SIGKILL)
    hub.wait()
    hub = coordinates("next.toml")
    scene.wait_until(lambda: node.says("site site-1 has new keys"))
    command(scene, "approve", "site-0-state", "--deny")
    assert node.wait() == 6 and node.error == "roster-denied"
    assert (scene.folder / "roster.toml").read_bytes() == (scene.folder / "kept-roster.toml").read_bytes()
    node = scene.node("site-0", "--serve")
    # What was denied is denied, until the owner types the command that the refusal names.
    assert node.wait() == 6 and node.error == "roster-denied"
    command(scene, *shlex.split(spoken_by(node).split("type `hedgerow ")[1].split("`")[0]))
    scene.node("site-0", "--serve")
    scene.wait_until(lambda: (scene.folder / "roster.toml").read_bytes() == (scene.folder / "next.toml").read_bytes())


def address_of(process: Process) -> str:
    """Where a command serves its page; fails when it has ended instead."""
    assert process.code is None, "".join(process.err)
    return "".join(re.findall(r"http://127\.0\.0\.1:\d+/[\w-]{22}/", "".join(process.err))[:1])


def on_page(url: str, action: str = "", **body: str) -> dict[str, Any]:
    """What stands on a page, or what is said of an action."""
    headers = {"Origin": url.rpartition("/")[0].rpartition("/")[0], "X-Hedgerow": "1"}
    content = json.dumps(body).encode() if action else None
    headers |= {"Content-Type": "application/json"} if action else {}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(urllib.request.Request(url + (action or "state"), content, headers), timeout=900) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def a_study_on_its_pages(scene: Scene) -> None:
    """The owner of a site approves a run on its page, sees what it has cost, and stops; the coordinator's has all."""
    begin(scene)
    hub = scene.start("serve", "study", "serve", "--seed", SEED, "--console", "0")
    invitation = json.loads((scene.folder / "site-0.invitation").read_text(encoding="utf-8"))
    own = f'version = 1\ndata_set = "wards"\nask = "always"\nnoise = ["server"]\n{invitation["policy"]}'
    (scene.folder / "own.toml").write_text(own, encoding="utf-8")
    joining = {site: join(scene, site) for site in SITES[1:]}
    joining["site-0"] = join(scene, "site-0", "--policy", "own.toml", "--console", "0")
    scene.wait_until(lambda: all(words_at(process) for process in joining.values()))
    site, run = address_of(joining["site-0"]), address_of(hub)
    assert on_page(site)["phase"] == f"Your words: {words_at(joining['site-0']).strip()}"
    scene.wait_until(lambda: {one["state"] for one in on_page(run).get("sites", [])} == {"to be confirmed"})
    compare(scene, joining)
    scene.wait_until(lambda: on_page(site).get("question") is not None)
    scene.wait_until(lambda: "asking" in {one["state"] for one in on_page(run)["sites"]})
    asked = on_page(site)
    assert asked["tables"][0]["name"] == "site-0.csv" and dict(asked["question"]["facts"])["spent now"] == "epsilon 0"
    assert "approved" in on_page(site, "do/approve", question=asked["question"]["id"])["said"]
    scene.wait_until(lambda: all(is_fetched(process) for process in joining.values()))
    scene.wait_until(lambda: bool(on_page(site).get("models")))
    known = on_page(site)
    assert [one[3] for one in known["runs"]] == ["finished"] and "epsilon spent" in known["report"]
    # Each end prints the day on which it has made it.
    undated = known["report"].rpartition("printed on")[0]
    scene.wait_until(lambda: str(on_page(run).get("report")).rpartition("printed on")[0] == undated)
    assert [one["version"] for one in on_page(run)["sites"]] == [__version__] * len(SITES)
    # Between two runs there is no node to hear of it.
    scene.wait_until(lambda: bool(on_page(site)["can_stop"]))
    assert "leaves its run" in on_page(site, "do/stop")["said"]
    assert joining["site-0"].wait() == 6 and joining["site-0"].error == "stopped-by-owner"
    hub.signal(signal.SIGINT)
    assert hub.wait() == 0


def the_demonstration(scene: Scene) -> None:
    """Real tables, a process of each party's own, and the model at every site; an existing folder is kept."""
    shown = scene.start("demo", "study", "demo", "--sites", "3", "--out", "shown")
    assert shown.wait() == 0, "".join(shown.err)
    assert "3 of 3 have it" in "".join(shown.out)
    # What is waited for is said before.
    assert "reads its table" in "".join(shown.err) and "the run begins" in "".join(shown.err)
    assert command(scene, "study", "demo", "--out", "shown", code=2).error == "study-exists"


def a_site_that_was_away(scene: Scene) -> None:
    """A run that goes on without a site gives it the model once it is back, by the same command; and not before."""
    begin(scene)
    serve = ("study", "serve", "--seed", SEED)
    hub = scene.start("serve", *serve)
    strike = {"signal": signal.SIGKILL, "kind": "ROUND_REQUEST", "round": 2, "number": 1, "moment": "before"}
    joining = {site: join(scene, site, strike=strike if site == "site-3" else None) for site in SITES}
    compare(scene, joining)
    assert joining.pop("site-3").wait() == -signal.SIGKILL
    scene.wait_until(lambda: all(is_fetched(process) for process in joining.values()))
    hub.signal(signal.SIGINT)
    hub.wait()
    kept = scene.folder / "wards-site-3"
    assert not list(kept.glob("model-*.json"))
    again = join(scene, "site-3")
    hub = scene.start("serve", *serve)
    assert hub.wait() == 0, "".join(hub.err)
    assert hub.says("Away at its end, and told of it now: site-3.")
    scene.wait_until(lambda: is_fetched(again))
    (received,) = kept.glob("model-*.json")
    assert received.read_bytes() == (scene.folder / "wards" / "run-1" / "model.json").read_bytes()
    # There is nothing left to tell, and the others have lost nothing by it.
    assert command(scene, *serve).says("begins another")
    assert all(process.code is None for process in (again, *joining.values()))


STORIES = {
    "a study": (from_invitations_to_a_model, 6),
    "a stolen invitation": (a_stolen_invitation, 6),
    "a site that was away": (a_site_that_was_away, 6),
    "the demonstration": (the_demonstration, 6),
    "a study on its pages": (a_study_on_its_pages, 6),
    "owners and a pause": (owners_are_asked_and_a_run_is_paused, 6),
    "who comes later": (who_comes_later, 6),
    "a roster slipped in": (a_roster_slipped_in, 6),
    "nodes that stay by hand": (nodes_that_stay_by_hand, 6),
    "a changed invitation": (an_invitation_that_was_changed, 6),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_study(theatre: Theatre, story: str) -> None:
    """From invitation files to a model, or to a refusal by name."""
    theatre.ended(story)
