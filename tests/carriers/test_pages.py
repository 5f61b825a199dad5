"""Who signs a page, answers a question or reads a pack is told the same: who sees what in the run that it is about."""

from __future__ import annotations

import math
import os
import tempfile
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app import evidence, owner
from hedgerow.app.cost import describe_visibility
from hedgerow.app.page import plan_facts
from hedgerow.app.report import read_words
from hedgerow.carriers.pages import _BUT_FIGURES, describe_reply
from hedgerow.client.budget import BudgetBook
from hedgerow.client.joining import NodeFiles, Offer, join
from hedgerow.client.node import EvaluationNode
from hedgerow.client.policy import Policy
from hedgerow.client.setup import NodeSetup, build_answers
from hedgerow.client.state import NodeStore, Question
from hedgerow.crypto import Identity
from hedgerow.local.forecast import forecast
from hedgerow.local.training import train
from hedgerow.methods.replica import digest_behaviour
from hedgerow.methods.tasks import EvaluationTask, SurveyTask, Task, TrainingTask, ensemble_bytes, find_visibility
from hedgerow.models.model import Model
from hedgerow.plan.plan import who_sees
from hedgerow.privacy.events import UnnoisedEvent
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.noise import SeededNoise
from hedgerow.privacy.report import PrivacyContext, build_report
from hedgerow.protocol.messages import MessageKind, Payload, encode
from hedgerow.protocol.queries import SiteQuery
from hedgerow.rounds import noise_mode
from hedgerow.secagg.messages import NoiseMode, Roster, Site
from hedgerow.survey.requests import OpenTable
from hedgerow.testing import make_rows
from hedgerow.transport.envelope import Envelope, EnvelopeKind
from tests.builders import make_plan
from tests.cli.test_evidence import SERVER, TRAININGS, read_ledger

SITES = tuple(f"s{number}" for number in range(9))
MODES = {"server": NoiseMode.SERVER, "distributed": NoiseMode.DISTRIBUTED, "local": NoiseMode.LOCAL}


@cache
def trained(noise: str, n_groups: int, epsilon: float) -> Model:
    """A model of one tree."""
    privacy = {"noise": noise, "n_records": 90, "epsilon": epsilon}
    plan = make_plan(model={"n_trees": 1}, privacy=privacy, federation={"groups": n_groups, "min_sites": 3})
    return train(plan, {site: make_rows(plan, 10, 1) for site in SITES}, noise=SeededNoise(1))


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """What a run may be for, with every noise that it may have; an evaluation need not have its training's."""
    noise, epsilon = draw(st.sampled_from(sorted(MODES))), draw(st.sampled_from([2.0, math.inf]))
    kind = draw(st.sampled_from(["training", "evaluation", "survey"]))
    if kind == "survey":
        privacy = {"epsilon": 2.0, "delta": 1e-5, "noise": "server" if noise == "local" else noise}
        return SurveyTask(OpenTable({"privacy": privacy, "label": "", "columns": [{"name": "age"}]}))
    model = trained(noise, 3 if noise == "distributed" and draw(st.booleans()) else 0, epsilon)
    if kind == "training":
        return TrainingTask(model.plan)
    own = noise if noise == "local" else draw(st.sampled_from(["server", "distributed"]))
    # By site there is always noise.
    by = ("site",) if noise != "local" and draw(st.booleans()) else ()
    cost = 2.0 if by else draw(st.sampled_from([2.0, math.inf])), 1e-5
    model_bytes = ensemble_bytes(model.ensemble)
    return EvaluationTask(model.plan, model_bytes, *cost, model.next_round, own, by, SITES if by else ())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(task=tasks(), shows=st.booleans())
def test_page_question_and_pack_say_what_the_bytes_are(task: Task, shows: bool) -> None:
    """That nobody sees a total, that there is noise, or that nothing of a site can be read is said of the run's task:
    by the page of a file, the owner's question and the pack alike, as its queries, their events and its vectors are."""
    words = find_visibility(task, lambda query: shows).split()
    is_exact = any(isinstance(event, UnnoisedEvent) for event in task.schedule.events)
    assert (words[0] == "none") == is_exact
    assert is_exact or MODES[words[0]] is noise_mode(task.run_plan)
    assert ("groups" in words) == (task.run_plan.federation.groups > 0)
    by_site = any(isinstance(alike.query, SiteQuery) for alike in task.schedule.rounds)
    expected = [["others-figures"], ["own-figures"]][shows] if by_site else []
    assert [word for word in words if word.endswith("figures")] == expected
    policy = Policy(
        version=1, data_set="wards", max_epsilon=math.inf, delta=1e-5, noise=tuple(MODES), ask="always",
        evaluation_noise=tuple(MODES), site_figures=shows, surveys=True, plans=(task.plan.digest,),
    )  # fmt: skip
    key = Identity(b"k" * 32)
    roster = Roster(key.public, tuple(Site(site, Identity(site.encode() * 16).public) for site in SITES))
    models = frozenset([task.model_digest]) if isinstance(task, EvaluationTask) else frozenset[bytes]()
    rows = make_rows(make_plan(), 10, 1)
    own = policy, os.urandom, SeededNoise(2), lambda _: rows
    setup = NodeSetup("s0", key, roster, *own, load_held_out=lambda _: rows, models=models)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "state"
        with closing(NodeStore(place)) as store, closing(BudgetBook(Path(folder) / "budget.db")) as book:
            offer = Offer(digest_behaviour(task), "")
            question = join(NodeFiles.for_site(store, book, "s0"), setup, b"r" * 32, task, None, offer)
            store.open_run(b"r" * 32, task, b"d" * 32)
        envelope = Envelope(EnvelopeKind.REPLY, "s0", b"l" * 32, 3, b"k" * 32, b"q" * 32)
        upload = encode(Payload(MessageKind.UPLOAD, b"x"))
        page = " ".join(describe_reply("s0.reply", b"x", envelope, [upload], place, policy).split())
    said = who_sees(" ".join(words))
    assert dict(owner.list_facts(cast(Question, question)))["who sees what"] == said and said in page
    assert (_BUT_FIGURES in page) == (by_site and shows)
    if isinstance(task, TrainingTask):
        assert dict(plan_facts(task.plan))["who sees what"] == said
        assert dict(describe_visibility(task.plan, forecast(task.plan)))["who sees what"] == said
    if isinstance(task, EvaluationTask):
        read_blocks(task, setup, shows)
    if not isinstance(task, SurveyTask):
        assert_in_pack(task, words)


def read_blocks(task: EvaluationTask, setup: NodeSetup, shows: bool) -> None:
    """Of figures by site a site's block can be read if it shows them, and has noise of its own if there is noise."""
    node = cast(EvaluationNode, build_answers(task, setup)[0])
    program = task.program()
    query = next(program)
    while query is not None:
        vector = node.answer(query)
        if isinstance(query, SiteQuery):
            own, *others = np.split(vector, len(SITES))
            exact = np.split(query.place("s0", node.sum_rows(query)), len(SITES))[0]
            assert not np.any(others) and np.any(own) == shows
            assert not shows or not np.array_equal(own, exact)
        try:
            query = program.send(np.zeros(query.release_length, dtype=np.int64))
        except StopIteration:
            return


def assert_in_pack(task: TrainingTask | EvaluationTask, words: list[str]) -> None:
    """A pack on a model with such releases says that the coordinator has seen exact totals where the page says it."""
    mode, made = task.run_plan.privacy.noise, []
    for number, query in enumerate(alike.query for alike in task.schedule.rounds if alike.query.length):
        event = UnnoisedEvent() if not query.noise_multiplier else TRAININGS[mode]
        (release,), kind = read_ledger(SERVER if isinstance(query, SiteQuery) else event), query.purpose.kind
        made.append(replace(release, purpose=f"{number}/{kind}/evaluation", kind=kind, round=number))
    ledger = Ledger(tuple(made))
    context = PrivacyContext.from_plan(task.run_plan)
    model = trained("server", 0, 2.0)
    model = Model(**{**vars(model), "ledger": ledger, "report": build_report(ledger, context)})
    about = read_words()["trust"]
    trust = evidence._describe_trust(model, about, dict.fromkeys(("clear", "runner", "n_groups", "n_choices"), ""))
    assert (about["words"]["figures"] in trust["notes"]) == any(word.endswith("figures") for word in words)
    seen = {row[0]: row[3] for row in trust["rows"]}["the coordinator"]
    assert seen.startswith("yes") == (words[0] in ("none", "server"))
