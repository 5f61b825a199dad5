"""No secret in any repr, exception or log; and no socket, clock, file or global generator in the room."""

from __future__ import annotations

import ast
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

import hedgerow.secagg
from hedgerow.crypto import Identity, SecretKey
from hedgerow.secagg.enrolment import Enrolment
from hedgerow.secagg.keys import SlotChain
from hedgerow.secagg.masks import MaskingKeys
from hedgerow.secagg.participant import ExpectedRound
from hedgerow.secagg.transitions import Code, OwnMistake, Refusal, SumAbandoned, refuse
from tests.secagg.lab import Lab, restore_node, seeded_entropy, store_node

ROOM = Path(hedgerow.secagg.__file__).parent


def secrets_of(lab: Lab) -> list[bytes]:
    node = lab.node(0)
    found = [node.chain.link, *node.channels.values(), node.chain.current_secret()]
    found += [run[start : start + 33] for run in node.shares.values() for start in range(0, len(run), 33)]
    return found + ([node.open.own_share] if node.open else [])


def shown(*things: object) -> str:
    return " ".join(f"{thing!r} {thing}" for thing in things)


def leaks(text: str, secret: bytes) -> bool:
    forms = (secret.hex(), repr(secret)[2:-1], str(int.from_bytes(secret, "big")), str(list(secret)))
    return any(form in text for form in forms) or any(secret[i : i + 8].hex() in text for i in range(0, 24, 8))


def test_no_repr_shows_a_secret():
    """States, steps, keys and messages are printed in logs and tracebacks; none of them may show a key or a share."""
    lab = Lab()
    secrets = secrets_of(lab)
    aggregator = lab.open()
    spec = aggregator.spec
    expected = ExpectedRound(spec.purpose, spec.model, spec.vectors, spec.noise)
    node = lab.node(0)
    step = node.mask(
        lab.session.contexts["site-0"], aggregator.signed_spec, expected, {"leaves": np.ones(4, np.int64)},
        lab.session.entropy,
    )  # fmt: skip
    lab.session.nodes["site-0"] = step.state
    key = node.chain.current()
    keys = MaskingKeys(lab.view, 0, key, node.channels, aggregator.context)
    text = shown(node, step.state, step.state.open, node.chain, key, keys, lab.session.contexts["site-0"], lab.view)
    text += shown(*step.persist)
    for secret in [*secrets, *secrets_of(lab)]:
        assert not leaks(text, secret)
    parameters = lab.session.parameters.to_bytes()
    enrolment = Enrolment.begin(lab.session.contexts["site-0"], parameters, seeded_entropy(1)).state
    drawn = seeded_entropy(1)
    for secret in (drawn(32), drawn(32), drawn(32)):
        assert not leaks(shown(enrolment), secret)


def test_no_exception_shows_bytes(caplog):
    """Errors carry codes, numbers and names; no message of a peer and no secret is quoted, and nothing is logged."""
    caplog.set_level(logging.DEBUG)
    lab = Lab()
    secrets = secrets_of(lab)
    aggregator = lab.collected()
    attempts = [
        lambda: lab.answered(0, lab.request(aggregator, 0, (1, 2, 3, 4))),
        lambda: lab.answered(0, lab.request(aggregator, 0, (0, 1))),
        lambda: restore_node(store_node(lab.node(0)), 99),
        lambda: restore_node(store_node(lab.node(0))[:-5], 1),
        lambda: lab.masked(0, aggregator.open(lab.view, lab.session.coordinator, aggregator.spec)),
    ]
    for attempt in attempts:
        try:
            attempt()
        except (Refusal, OwnMistake, SumAbandoned) as error:
            text = shown(error, error.__cause__, error.__context__, *error.args)
            assert not any(leaks(text, secret) for secret in secrets)
            assert "\\x" not in text
    assert not caplog.records


def test_exact_sums_and_shares_stay_out_of_the_aggregator_s_reprs():
    """Where noise is central, the unmasked sum is not private yet; and shares of many nodes together are secrets."""
    lab = Lab()
    aggregator, requests = lab.collected().close_vectors(lab.session.coordinator)
    answers = [lab.answered(node, requests[node]).message or b"" for node in range(5)]
    aggregator, _ = aggregator.receive(answers)
    released, release = aggregator.release()
    text = shown(aggregator, released, release)
    assert "15" not in text and "x" not in text.replace("suspects", "")
    assert release.sums["leaves"].tolist() == [15] * 4


@pytest.mark.parametrize("secret", [Identity(bytes(range(32))), SecretKey(bytes(range(32)))])
def test_signing_and_secret_keys_are_not_pickled(secret):
    """A pickle would write the key in clear wherever a careless cache puts it."""
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_every_error_says_what_why_and_what_to_do():
    """The three sentences are there for people, the code for machines."""
    for code in Code:
        error = refuse(code, peer=3)
        assert error.what and error.cause and error.remedy and error.code == code.value
        assert "3" in str(error)
    assert repr(SlotChain(bytes(32))) == "SlotChain(slot=0)"


FORBIDDEN = {"socket", "ssl", "asyncio", "time", "datetime", "random", "secrets", "os", "pathlib", "io", "logging",
             "threading", "subprocess", "sqlite3", "tempfile", "shutil", "pickle"}  # fmt: skip


MODULES = sorted([*ROOM.rglob("*.py"), *(ROOM.parent / "crypto").rglob("*.py")])


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_the_room_is_pure(module):
    """Bytes in, bytes out: no module of the room imports a socket, clock, file or generator, or opens one."""
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & FORBIDDEN
        assert not any(name.startswith("numpy.random") for name in names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "input", "print"}
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"random", "default_rng", "urandom"}
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hedgerow"):
            allowed = {"secagg", "crypto", "codec", "errors"}
            rooms = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            assert set(rooms) <= allowed, "The room knows nothing of the others."
