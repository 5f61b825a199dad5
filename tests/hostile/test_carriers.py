"""Who carries a run's messages loses, doubles, swaps, changes and keeps them: the model is right, or there is none."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hedgerow.carriers import coordinator, read_coordinator_file, site
from hedgerow.carriers.handing import HandedBack, HandedOn
from hedgerow.cli.main import main
from hedgerow.client.budget import FINISHED, BudgetBook
from hedgerow.errors import HedgerowError
from hedgerow.models.model import Model
from hedgerow.privacy.statement import PLACES
from hedgerow.transport.carrier import Carrier, Patience
from tests.carriers.conftest import Federation

pytestmark = pytest.mark.slow
PATIENCE = Patience(poll=0.001, longest_poll=0.005, roll_call=0.01, repeat=0.05, longest_repeat=0.2, closing=2.0)
DAYS = {"join_timeout": 1e6, "round_timeout": 1e6, "idle_timeout": 2e6}
ACTS = ("drop", "lose", "double", "replay", "swap", "reply of another", "older reply", "change", "plain", "plain")
N_ACTS = 40
"""Of a run: after them it is carried as it should be, so that it comes to an end."""


class Hostile:
    """Carries requests to the sites' nodes and their replies back, for a while as it likes."""

    def __init__(self, federation: Federation, seed: int) -> None:
        self._places = [federation.folder / f"{name}.toml" for name in federation.sites]
        self._random = Random(seed)
        self._requests: list[list[bytes]] = [[] for _ in self._places]
        self._replies: list[list[bytes]] = [[] for _ in self._places]
        self.acts: list[str] = []

    def _answer(self, node: int, data: bytes) -> bytes:
        reply = site.answer_request(self._places[node], data)
        self._replies[node].append(reply)
        return reply

    def __call__(self, node: int, data: bytes) -> bytes | None:
        """The reply that this carrier brings, or None."""
        act = self._random.choice(ACTS) if len(self.acts) < N_ACTS else "plain"
        self.acts.append(act)
        other = (node + 1) % len(self._places)
        self._requests[node].append(data)
        match act:
            case "drop":
                return None
            case "lose":
                self._answer(node, data)
                return None
            case "double":
                assert self._answer(node, data) == self._answer(node, data)
            case "replay":
                self._try(node, self._random.choice(self._requests[node]))
            case "swap":
                self._try(other, data)
            case "reply of another" if self._replies[other]:
                return self._random.choice(self._replies[other])
            case "older reply" if self._replies[node]:
                return self._random.choice(self._replies[node])
            case "change":
                return change(self._answer(node, data), self._random)
        return self._answer(node, data)

    def _try(self, node: int, data: bytes) -> None:
        with suppress(HedgerowError):
            self._answer(node, data)


def change(data: bytes, random: Random) -> bytes:
    """The data with one bit changed, anywhere."""
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def over_flower(
    federation: Federation, bring: Callable[[int, bytes], bytes | None], patch: pytest.MonkeyPatch
) -> Carrier:
    """Flower's carrier, over a grid that brings what it likes."""
    flower = pytest.importorskip("hedgerow.carriers.flower")

    def message(content: object, dst_node_id: int, **_: object) -> SimpleNamespace:
        return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id))

    # Flower's own is made in a run of its own only.
    patch.setattr(flower, "Message", message)

    class Grid:
        def __init__(self) -> None:
            self._came: list[SimpleNamespace] = []
            self._count = 0

        def get_node_ids(self) -> list[int]:
            return list(range(len(federation.sites)))

        def push_messages(self, messages: Iterable[Any]) -> list[str]:
            numbers = []
            for message in messages:
                self._count += 1
                numbers.append(str(self._count))
                reply = bring(message.metadata.dst_node_id, HandedOn.from_bytes(flower.unwrap(message.content)).request)
                about = SimpleNamespace(reply_to_message_id=numbers[-1])
                if reply is not None:
                    content = flower.wrap(HandedBack(reply).to_bytes())
                    self._came.append(SimpleNamespace(metadata=about, content=content, has_error=lambda: False))
            return numbers

        def pull_messages(self, numbers: Iterable[str]) -> list[SimpleNamespace]:
            wanted = set(numbers)
            found = [reply for reply in self._came if reply.metadata.reply_to_message_id in wanted]
            self._came = [reply for reply in self._came if reply not in found]
            return found

    carrier: Carrier = flower.GridCarrier(Grid())
    return carrier


def over_nvflare(
    federation: Federation, bring: Callable[[int, bytes], bytes | None], patch: pytest.MonkeyPatch
) -> Carrier:
    """NVFlare's carrier, over clients that bring what they like; NVFlare itself is not needed."""
    names = ("nvflare", "nvflare.apis", "nvflare.apis.fl_constant", "nvflare.collab")
    fakes = {name: ModuleType(name) for name in names}
    fakes["nvflare.apis.fl_constant"].FLContextKey = SimpleNamespace()  # type: ignore[attr-defined]
    error = type("CollabCallError", (Exception,), {})
    facade = SimpleNamespace(main=lambda function: function, publish=lambda function: function)
    vars(fakes["nvflare.collab"]).update(CollabCallError=error, CollabRecipe=object, collab=facade)
    for name, fake in fakes.items():
        patch.setitem(sys.modules, name, fake)
    patch.delitem(sys.modules, "hedgerow.carriers.collab", raising=False)
    from hedgerow.carriers.collab import CollabCarrier

    patch.delitem(sys.modules, "hedgerow.carriers.collab")

    class Client:
        def __init__(self, node: int) -> None:
            self._node = node

        def __call__(self, timeout: float) -> Client:
            return self

        def answer(self, request: bytes) -> bytes:
            reply = bring(self._node, HandedOn.from_bytes(request).request)
            if reply is None:
                raise error("lost")
            return HandedBack(reply).to_bytes()

    class AtOnce:
        def submit(self, function: Callable[..., bytes], *arguments: Any, **named: Any) -> Future[bytes]:
            future = Future[bytes]()
            try:
                future.set_result(function(*arguments, **named))
            except Exception as fault:
                future.set_exception(fault)
            return future

    carrier = CollabCarrier([Client(node) for node in range(len(federation.sites))])
    carrier.close()
    carrier._pool = AtOnce()  # type: ignore[assignment]
    return carrier


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("over", [over_flower, over_nvflare])
def test_a_hostile_carrier_changes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: Callable[..., Carrier], seed: int
) -> None:
    """What it brings late, twice, to the wrong party or changed costs time, and no row is answered for twice."""
    federation = Federation(tmp_path / "federation", 3, {})
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def monotonic() -> float:
        sleep(0.0001)
        return now[0]

    monkeypatch.setattr(coordinator, "time", SimpleNamespace(monotonic=monotonic, sleep=sleep, time=lambda: 0.0))
    hostile = Hostile(federation, seed)
    file = read_coordinator_file(Path(federation.path("coordinator.toml")))
    _, hub = coordinator.coordinate(file, over(federation, hostile, monkeypatch), PATIENCE)
    assert set(ACTS) <= set(hostile.acts)
    require_right(federation, over.__name__.removeprefix("over_"))
    assert hub.refusals, "Something of it was refused."


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hostile_courier_changes_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """By files, too: each is changed, cut off, swapped, doubled, kept for days or lost, and refused by its name."""
    federation, random = Federation(tmp_path / "federation", 3, DAYS), Random(seed)
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    boxes = {name: tmp_path / name for name in ("coordinator", *federation.sites)}
    codes: list[int] = []
    for box in boxes.values():
        box.mkdir()

    def party(way: str, name: str) -> None:
        codes.append(main(["carry", way, str(boxes[name]), "--as", federation.path(f"{name}.toml")]))

    def bring(source: str, target: str, ending: str, is_hostile: bool) -> None:
        paths = sorted(boxes[source].glob(f"*.{ending}"))
        for path in paths:
            act = random.choice(("plain", "plain", "drop", "change", "cut", "swap")) if is_hostile else "plain"
            data = path.read_bytes()
            if act == "change":
                data = change(data, random)
            elif act == "cut":
                data = data[: random.randrange(len(data))]
            elif act == "swap":
                data = random.choice(paths).read_bytes()
            if act != "drop":
                (boxes[target] / path.name).write_bytes(data)

    for step in range(40):
        now[0] += 3600.0
        is_hostile = bool(step % 2)
        party("out", "coordinator")
        if (federation.folder / "model.json").exists():
            break
        for name in federation.sites:
            bring("coordinator", name, "request", is_hostile)
            party("in", name)
            party("out", name)
            bring(name, "coordinator", "reply", is_hostile)
        party("in", "coordinator")
    for name in federation.sites:
        for path in boxes["coordinator"].glob(f"{name}-*.request"):
            shutil.copy(path, boxes[name])
        party("in", name)
    assert set(codes) == {0, 8}
    require_right(federation, "files")


def require_right(federation: Federation, place: str) -> None:
    """The model is the local engine's, says who carried its run, and every site has paid for one run."""
    assert federation.model() == federation.local_model()
    report = Model.load(federation.path("model.json")).report
    assert report.made_in == place in PLACES and "every row" not in report.trust
    for name in federation.sites:
        with closing(BudgetBook(federation.folder / f"{name}-budget.db")) as book:
            (line,) = book.lines()
        assert line.status == FINISHED and line.epsilon(1e-6) <= 1.0
