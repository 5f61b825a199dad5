"""Both pages of ``--console`` in every state, and a model's, with names that a browser could take for markup: for
deploy/pages-check.

``python -m tests.page_scenes`` prints a line for each, its name and its address, and serves them until its stdin ends.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from hedgerow.app.evidence import gather_evidence, write_evidence
from hedgerow.app.owner import list_facts
from hedgerow.app.page import Console, Page, PastRun, SitePage
from hedgerow.app.report import render_report
from hedgerow.client.policy import Policy
from hedgerow.client.state import Question
from hedgerow.data.fit import ColumnFit, TableFit
from hedgerow.data.units import RowCount
from hedgerow.errors import PolicyRefusal
from hedgerow.models.model import Model
from hedgerow.protocol.stream import OVER, EventReport, RunReport, SiteReport, SiteState
from hedgerow.transport.identities import PinnedRoster, Role, new_identity
from tests import builders
from tests.cli.test_evidence import ATTACK

MARKUP = "<img src=x onerror=alert(1)>"
PLAN = replace(builders.make_plan("binary", {"n_trees": 20}), name=f"readmission {MARKUP}")
NAMES = ("dayton", "fitchburg", "franklin", "seattle & sons", MARKUP)
STATES = (SiteState.READY, SiteState.READY, SiteState.REFUSED, SiteState.CONNECTED, SiteState.ABSENT)
WHY = ("", "", "policy-over-budget", "", "")
REPORT = RunReport(
    b"process1", bytes(range(32)), bytes.fromhex(PLAN.digest), "0.1.0", "gathering", rounds_planned=240, delta=1e-5,
    epsilon_limit=1.0, seconds=20.0, bytes_sent=8_600_000, bytes_received=4_300_000,
    sites=tuple(SiteReport(*one, version="0.1.0") for one in zip(NAMES, STATES, WHY, strict=True)),
)  # fmt: skip
EVENTS = (EventReport(1, 2.0, "joined", 0, MARKUP), EventReport(2, 3.0, "refused", 0, "franklin", WHY[2]))
QUESTION = Question(
    "5d" * 32, "training", PLAN.name, PLAN.digest, PLAN.digest, 2.0, 1e-5, "admissions", 1.92, 3.0, 1e-6, "server",
    "2026-11-23 14:41:02",
)  # fmt: skip
POLICY = Policy(version=1, data_set=f"admissions {MARKUP}", max_epsilon=3.0, delta=1e-6)
COLUMNS = [
    ColumnFit("age", "feature", "numeric", 12_034, 12, 700, is_constant=False),
    ColumnFit(MARKUP, "feature", "categorical", 12_034, n_unlisted=2400, is_constant=False),
    ColumnFit("y", "label", "categorical", 12_034, is_constant=False),
]
RUNS = [
    ["5d5d5d5d5d5d", "2026-11-23 14:41:02", PLAN.name, "reserved", "0.84", "1.92"],
    ["aa77bb001122", "2026-10-02 09:12:44", "wards", "finished", "0.5", "1.41"],
    ["00ff00ff00ff of " + MARKUP, "", "wards", "left", "1.2", "1.2"],
]
BOOK = {
    "budget": [["spent so far", "epsilon 1.55"], ["spent, or reserved", "epsilon 1.92"], ["at delta", "1e-06"]],
    "budget_text": "1.92 of 3",
    "ledger": {
        "points": [[0, 0], [1, 1.2], [2, 1.41], [2.5, 1.55]], "reserved": [[2, 1.41], [3, 1.92]], "most": 3, "limit": 3,
    },
    "runs": RUNS,
    "invitations": [["2026-11-20 10:00:00", "evaluation", MARKUP, "infinite", "policy-model", "4"]],
    "can_stop": True,
}  # fmt: skip


def a_model() -> Model:
    outcome = builders.train(PLAN, [builders.make_data(PLAN, 200, 0)])
    return Model(PLAN, outcome.ensemble, outcome.ledger, outcome.report)


def runs(model: Model) -> Iterator[tuple[str, Page]]:
    """The page of a run, from before its study's first run to its end."""
    past = [PastRun("run 1", "finished", PLAN, tuple(model.ledger.events()))]

    def since(number: int) -> tuple[tuple[EventReport, ...], int]:
        return EVENTS[number:], 0

    for name in ("empty", "parties", "waiting", "running", "given-up", "finished"):
        page = Console("0", None if name == "empty" else PLAN)
        if name == "parties":
            parties = [("dayton", "takes part", True), (MARKUP, "to be confirmed", False)]
            page.show_parties(parties, f"waiting for {MARKUP} to be confirmed (65 s so far, until they come)")
        elif name != "empty":
            page.say(study="readmissions-2026")
            page.show_history(past, PLAN)
            page.show(REPORT, since)
        if name in ("running", "given-up", "finished"):
            for done in range(0, 170, 10):
                report = replace(
                    REPORT, phase="collecting-vectors", rounds_done=done, epsilon_spent=(done / 240) ** 0.5
                )
                page.show(replace(report, rounds_per_second=5.0), since)
        if name == "given-up":
            page.show(replace(REPORT, phase=OVER, failure="too-few-sites", rounds_done=160, epsilon_spent=0.82), since)
        elif name == "finished":
            page.show(replace(REPORT, phase=OVER, rounds_done=240, epsilon_spent=0.99), since)
            page.show_model(model)
        yield f"run-{name}", page


def sites(model: Model, folder: Path) -> Iterator[tuple[str, Page]]:
    """The page of a site, from its enrolment on."""
    parties = [new_identity(name, Role.SITE, bytes([n]) * 32).public for n, name in enumerate(("north", "south"))]
    roster = PinnedRoster(1, new_identity("hub", Role.COORDINATOR, bytes(31) + b"h").public, tuple(parties))
    for name in ("words", "question", "running", "refused", "finished"):
        page = SitePage("0", "north", "readmissions-2026")
        if name == "words":
            page.show_cost(PLAN)
            page.wait_for("Your words: apple river stone lamp", "Call the operator. Each reads the other the words.")
            yield f"site-{name}", page
            continue
        page.begin(PLAN, POLICY, roster, "hedgerow.example.org:7443")
        found = TableFit(RowCount(12_034), COLUMNS, ["patient", "zip"], suggested_lines=[f'recode.{MARKUP} = "x"'])
        page.show_fit(f"{MARKUP}.csv", found)
        page.tell("WARNING", f"Odd: {MARKUP}")
        page.say(**BOOK, phase="Taking part", mood="runs", rounds=[120, 240])
        if name == "question":
            asked = {"id": QUESTION.id, "facts": list_facts(QUESTION)}
            page.say(phase="Your answer is awaited", mood="waits", question=asked, rounds=None)
        elif name == "refused":
            page.say(phase="Stopped", mood="bad", can_stop=False)
            page.fail(PolicyRefusal("policy", code="policy-label", asked=f"predictions of {MARKUP!r}"))
        elif name == "finished":
            model.save(folder / "model-0123456789ab.json")
            page.show_models(folder)
            page.wait_for("Waiting for the next run")
        yield f"site-{name}", page


def documents(folder: Path) -> Iterator[tuple[str, Path]]:
    """Pages that are files: the pack for reviewers and a model's report, of the same names."""
    model, file = a_model(), folder / "model.json"
    model.save(file)
    attack = folder / "attack.json"
    cells = [{**cell, "column": MARKUP} for cell in ATTACK["attributes"]]
    attack.write_text(json.dumps({**ATTACK, "attributes": cells, "findings": [MARKUP]}))
    content = gather_evidence(file, model, "2026-11-26", book=None, attack=attack, evaluation=None)
    yield "evidence", write_evidence(folder, model, content)["evidence.html"]
    (folder / "report.html").write_text(render_report(model, "2026-11-26", None))
    yield "report", folder / "report.html"


@contextmanager
def all_pages() -> Iterator[dict[str, Page]]:
    """Every page by its name, served until the block ends."""
    with ExitStack() as stack:
        folder, model = Path(stack.enter_context(tempfile.TemporaryDirectory())), a_model()
        found = {}
        for name, page in (*runs(model), *sites(model, folder)):
            found[name] = stack.enter_context(page)
        yield found


if __name__ == "__main__":
    with all_pages() as pages:
        for name, page in pages.items():
            print(name, page.url, flush=True)
        folder = Path(tempfile.mkdtemp())
        for name, file in documents(folder):
            print(name, file.as_uri(), flush=True)
        print("all", flush=True)
        sys.stdin.read()
        shutil.rmtree(folder)
