"""What secure aggregation costs, beside Flower's SecAgg+ primitives on the same machine in the same run.

``python -m experiments secagg_cost`` prints time and bytes; the gates at the end are the project's promises. With
``--sizes`` it prints only what a node of a large roster is sent in a set-up, the table of docs/secure-aggregation.md.
Flower's column needs ``pip install flwr`` (1.41 was measured); without it, it stays empty.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from experiments.harness import arguments, verdict
from hedgerow import crypto
from hedgerow.crypto import DTYPES, VERIFIED, add_keystreams
from hedgerow.secagg.aggregator import Aggregator
from hedgerow.secagg.messages import VectorSpec
from hedgerow.secagg.participant import ExpectedRound
from hedgerow.secagg.session import EpochSession
from tests.secagg.setup_sizes import table_of_sizes

FLOWER_MISSING = "Flower is not installed here: `pip install flwr` (or run this in an environment that has it)."


class Stopwatch:
    """Times single steps as if each party were alone: signatures verified before are forgotten first."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def run(self, name: str, act: Callable[[], Any]) -> Any:
        """What `act` returns; its wall-clock milliseconds are kept under `name`."""
        VERIFIED.clear()
        started = time.perf_counter()
        found = act()
        self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - started))
        return found

    def median(self, name: str) -> float:
        """The median milliseconds of a name, 0 if it never ran."""
        return statistics.median(self.times.get(name, [0.0]))


def milliseconds(act: Callable[[], object], repeats: int) -> float:
    """The median of `act`, after one run that is not counted."""
    act()
    watch = Stopwatch()
    for _ in range(repeats):
        watch.run("act", act)
    return watch.median("act")


def flower() -> tuple[Any, Any] | None:
    """Flower's modules of masks and of secret sharing, or None when it is not installed."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    names = "secaggplus_utils", "crypto.shamir"
    try:
        masks, sharing = (import_module(f"flwr.common.secure_aggregation.{name}") for name in names)
    except ImportError:
        return None
    return masks, sharing


def primitives(theirs: tuple[Any, Any] | None) -> dict[str, tuple[float, float | None]]:
    """Ours and theirs in milliseconds: masks of 100,000 entries, and Shamir with n = 100, t = 51."""
    keys = [os.urandom(32) for _ in range(100)]
    secret, holders = os.urandom(32), list(range(1, 101))
    shares = crypto.split(secret, holders, 51, os.urandom)
    wide, narrow = (np.zeros(100_000, DTYPES[bits]) for bits in (64, 32))
    acts: dict[str, Callable[[], object]] = {
        "masks of 100 neighbours, 100,000 entries of 64 bits": lambda: add_keystreams(wide, keys, []),
        "masks of 100 neighbours, 100,000 entries of 32 bits": lambda: add_keystreams(narrow, keys, []),
        "Shamir, 32 bytes, share 51 of 100": lambda: crypto.split(secret, holders, 51, os.urandom),
        "Shamir, 32 bytes, combine 51": lambda: crypto.secret_from(
            crypto.weights_at(0, holders[:51]), [crypto.parse_share(share) for share in shares[:51]]
        ),
    }
    ours = {name: milliseconds(act, 9) for name, act in acts.items()}
    if theirs is None:
        return {name: (value, None) for name, value in ours.items()}
    masks, sharing = theirs

    def expand() -> None:
        accumulated = np.zeros(100_000, np.int64)
        for key in keys:
            # The modulus is Flower's default of 2^32; it has no 64-bit mode.
            accumulated += masks.pseudo_rand_gen(key, 1 << 32, [(100_000,)])[0]

    create = partial(sharing.create_shares, secret, 51, 100)
    combine = partial(sharing.combine_shares, create()[:51])
    expanded, created, combined = (milliseconds(act, 3) for act in (expand, create, combine))
    found = (expanded, expanded, created, combined)
    return {name: (value, other) for (name, value), other in zip(ours.items(), found, strict=True)}


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Median milliseconds of a node's two exchanges, and the seconds of the server's whole aggregation."""

    mask: float
    answer: float
    persist: float
    server: float


def one_round(n_nodes: int, length: int, width: int) -> RoundCost:
    """The cost of one aggregation with as many nodes dropped before their vector as may be, a tenth at most."""
    sites = [f"site-{number}" for number in range(n_nodes)]
    session = EpochSession(sites, 2, os.urandom)
    spec = session.spec("cost", (VectorSpec("v", length, width, 1000, 1000 * n_nodes),))
    aggregator = Aggregator.open(session.view, session.coordinator, spec)
    expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
    present = sites[min(n_nodes // 10, n_nodes - session.view.guarantees.min_survivors) :]
    vectors = {"v": np.ones(length, np.int64)}
    watch = Stopwatch()

    def each(name: str, step_of: Callable[[str], Callable[[], Any]]) -> list[bytes]:
        said = []
        for site in present:
            step = watch.run(name, step_of(site))
            watch.run("persist", step.state.step_bytes)
            session.nodes[site] = step.state
            said.append(step.message)
        return said

    def mask(site: str) -> Callable[[], Any]:
        context = session.contexts[site]
        return partial(session.nodes[site].mask, context, aggregator.signed_spec, expected, vectors, os.urandom)

    def answer(site: str) -> Callable[[], Any]:
        state = session.nodes[site]
        return partial(state.unmask, session.contexts[site], requests[state.node])

    said = each("mask", mask)
    aggregator, _ = watch.run("server", lambda: aggregator.receive(said))
    aggregator, requests = watch.run("server", lambda: aggregator.close_vectors(session.coordinator))
    said = each("answer", answer)
    if session.view.guarantees.has_echo:
        aggregator, _ = watch.run("server", lambda: aggregator.receive(said))
        aggregator, certificate = watch.run("server", lambda: aggregator.close_echoes())
        said = each("confirm", lambda site: partial(session.nodes[site].confirm, certificate))
    aggregator, _ = watch.run("server", lambda: aggregator.receive(said))
    release = watch.run("server", lambda: aggregator.release())[1]
    if release.sums["v"].tolist() != [len(present)] * length:
        raise AssertionError("The sum is wrong.")
    answering = watch.median("answer") + watch.median("confirm")
    return RoundCost(watch.median("mask"), answering, watch.median("persist"), sum(watch.times["server"]) / 1e3)


def run_bytes(n_sites: int = 10) -> dict[str, int]:
    """The greatest upload and download of a site for a whole run of 100 trees of depth 4 in batches of 25.

    Everything is counted: set-up, the label sums, four sums of 25 * 16 leaves * 2 numbers, and two spare slots.
    """
    sites = [f"site-{number}" for number in range(n_sites)]
    session = EpochSession(sites, 7, os.urandom)
    setup = max(session.traffic.up.values())
    for purpose, length in (("labels", 2), *((f"trees-{batch}", 25 * 16 * 2) for batch in range(4))):
        spec = session.spec(purpose, (VectorSpec("leaves", length, 32, 1 << 24, 1 << 28),))
        session.aggregate(spec, {site: {"leaves": np.ones(length, np.int64)} for site in sites})
    return {
        "set-up, sent by a site": setup,
        "whole run, sent by a site": max(session.traffic.up.values()),
        "whole run, received by a site": max(session.traffic.down.values()),
        "of the sent bytes, masked entries": 4 * (2 + 4 * 800),
    }


def main(argv: list[str]) -> int:
    """Prints the tables and returns 1 if a promise is broken."""
    parser = arguments("secagg_cost", __doc__, data="unused")
    parser.add_argument("--sizes", action="store_true", help="only print the sizes, in MiB, of what a node is sent")
    if parser.parse_args(argv).sizes:
        print("\n".join(table_of_sizes()))
        return 0
    theirs = flower()
    print(f"{'primitive (ms, median)':<55} {'hedgerow':>9} {'Flower':>9} {'ratio':>7}")
    found = primitives(theirs)
    for name, (ours, other) in found.items():
        shown = f"{other:9.1f} {other / ours:6.1f}x" if other is not None else f"{'-':>9} {'-':>7}"
        print(f"{name:<55} {ours:9.2f} {shown}")
    if theirs is None:
        print(FLOWER_MISSING)
    dense, longer, many = (one_round(50, 100_000, 64), one_round(100, 100_000, 64), one_round(1000, 1600, 32))
    titles = f"{'mask ms':>9} {'answer ms':>10} {'to disk ms':>11} {'server s':>9}"
    print(f"\n{'one aggregation, some dropped':<38} {titles}")
    names = ("n = 50, 100,000 entries of 64 bits", "n = 100, 100,000 entries of 64 bits", "n = 1,000, 1,600 of 32 bits")
    for name, cost in zip(names, (dense, longer, many), strict=True):
        print(f"{name:<38} {cost.mask:9.1f} {cost.answer:10.1f} {cost.persist:11.1f} {cost.server:9.2f}")
    traffic = run_bytes()
    print("\n100 trees, depth 4, batches of 25, 10 sites (bytes)")
    for name, count in traffic.items():
        print(f"{name:<38} {count:9,}")
    gates = {
        "node, n = 100, 100,000 entries: under 50 ms": longer.mask + longer.answer < 50,
        "server, n = 50 and 100, 100,000 entries: under 1 s": max(dense.server, longer.server) < 1,
        "server, n = 1,000: under 1 s": many.server < 1,
        "upload of a whole run: under 64 kB a site": traffic["whole run, sent by a site"] < 64_000,
    }
    ratios = [other / ours for ours, other in found.values() if other is not None]
    if ratios:
        # Flower's masks are below 2^32 and made by one thread; ours of 64 bits carry twice as much and use two.
        gates["masks of 64 bits at least 2 times as fast as Flower's"] = ratios[0] >= 2
        gates["masks of 32 bits at least 2 times as fast as Flower's"] = ratios[1] >= 2
        gates["Shamir at least 50 times as fast as Flower's"] = min(ratios[2:]) >= 50
    print()
    return verdict(gates, "BROKEN")
