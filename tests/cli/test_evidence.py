"""The pack for reviewers and the page of a report: every figure is found again, and nothing is asked of the network."""

from __future__ import annotations

import ast
import datetime
import hashlib
import html
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.app import recount
from hedgerow.app.attack import EXPLANATION, build_attack_sheets, describe_attack
from hedgerow.app.evidence import _bound_chance, gather_evidence, render_evidence
from hedgerow.app.output import json_text, number
from hedgerow.app.report import read_words
from hedgerow.app.schema import describe_kinds
from hedgerow.attacks.measures import Bound, Figure, Separation
from hedgerow.cli.main import main
from hedgerow.client.budget import FINISHED, BudgetBook
from hedgerow.local.attacks import AttackReport, Attribute, KindSignal, MembershipFigures, Reconstruction, Signal
from hedgerow.models.model import Model
from hedgerow.privacy.accountants import get_accountant
from hedgerow.privacy.accounts import AccountState
from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    Event,
    LocalGaussianEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.ledger import Ledger, Release
from hedgerow.privacy.report import PrivacyContext, build_report
from hedgerow.protocol.refusals import Salvage
from tests.package.field_reference import kinds

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "tests" / "vectors" / "opendp_deployments_schema.json").read_text(encoding="utf-8"))[
    "schema"
]
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")

_AREA, _TOO_FEW = Figure(0.5125, 0.0213, 0.5661), Figure(math.nan, math.nan, 0.0198)
ATTACK = describe_attack(
    AttackReport(
        "0" * 64, 40, 2, Bound(0.268, 1.0, 1e-5),
        (MembershipFigures("scores", "all", 3, 40, Separation(_AREA, {0.01: _TOO_FEW, 0.001: _TOO_FEW})),),
        (Reconstruction("model file", 3, 20.0, 40, 0.51, 0.02, math.nan, math.nan, 0.49, math.nan),),
        Signal(40, 0.53, 0.981, 0.997, 0.998, True, (KindSignal("LeafSums", 8, 1, 0.53, 0.98, 0.997, 1.02, 0.03),)),
        (Attribute("<age>", 30, Figure(0.533, 0.09, 0.605)),), ("<one> of them",),
    ),
    is_private=True,
)  # fmt: skip
"""What `hedgerow attack --json` prints, of private rows."""


@pytest.fixture(scope="module")
def evaluated(
    study: Path, sites: list[str], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A model that the sites have evaluated, and what that printed."""
    folder = tmp_path_factory.mktemp("evaluated")
    out, printed = folder / "model.json", folder / "evaluation.json"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("hedgerow.cli.evaluate.print_json", lambda content: lines.append(json_text(content)))
        by = "--by", "ward", "--by", "site"
        arguments = ["--federated", *sites, "--epsilon", "3", *by, "--out", str(out), "--json"]
        assert main(["evaluate", str(model), *arguments]) == 0
    printed.write_text(lines[0])
    return out, printed


@pytest.fixture(scope="module")
def pack(evaluated: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pack of everything: evaluation, book, attack."""
    folder, (model, evaluation) = tmp_path_factory.mktemp("pack"), evaluated
    book = BudgetBook(folder / "north-budget.db")
    book.serve("north", folder)
    plan = Model.load(model).plan
    book.reserve(b"\1" * 16, "wards", plan, [DiscreteGaussianEvent(50.0, 100, 3)], (9.0, 1e-6))
    book.settle(b"\1" * 16, ([DiscreteGaussianEvent(50.0, 100, 3)], {}), FINISHED)
    book.close()
    (folder / "attack.json").write_text(json.dumps(ATTACK))
    options = ["--evaluation", str(evaluation), "--book", str(folder / "north-budget.db")]
    options += ["--attack", str(folder / "attack.json"), "--out", str(folder / "out")]
    assert main(["evidence", str(model), *options]) == 0
    return folder


def read_text(page: str) -> str:
    """What a reader sees."""
    body = page[page.index("<main>") :]
    return html.unescape(re.sub(r"<[^>]*>", " ", re.sub(r'(src|href|d|id)="[^"]*"', "", body)))


def leaves(content: Any) -> Iterator[Any]:
    """All plain values in a JSON value."""
    if isinstance(content, dict | list):
        for each in content.values() if isinstance(content, dict) else content:
            yield from leaves(each)
    else:
        yield content


def forms(value: Any) -> set[str]:
    """How a page may write a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return set()
    written = {number(value), number(value, 6), f"{value:.10g}", f"{value:g}", f"{value:.3g}", f"{value:.6g}"}
    written |= {f"{value:.3f}", f"{100 * value:.1f}", f"{100 * value:.2f}"}
    return written | ({f"{value:,}"} if isinstance(value, int) else set())


def intervals(evaluation: dict[str, Any]) -> Iterator[float]:
    """Both ends of each interval of an evaluation."""
    measured = [evaluation, *(own for groups in evaluation["groups"].values() for own in groups.values())]
    for each in (each for own in measured for each in (own["n_records"], *own["scores"].values())):
        if each["value"] is None:
            continue
        reach = 1.96 * math.hypot(each["noise_error"], each["sampling_error"] or 0.0)
        yield from (each["value"] - reach, each["value"] + reach, 0, 1)
    for curve in evaluation["curves"]:
        points = zip(curve["share"], curve["observed"], curve["noise_error"], strict=True)
        pairs = [(share, observed) for share, observed, error in points if isinstance(error, float)]
        rate = sum(share * observed for share, observed in pairs) / sum(share for share, _ in pairs)
        yield round(100 * max(rate, 1 - rate))
        for observed, error in zip(curve["observed"], curve["noise_error"], strict=True):
            if error != "infinite":
                yield from (max(observed - 1.96 * error, 0.0), min(observed + 1.96 * error, 1.0))


def test_every_number_of_the_page_is_found_again(pack: Path) -> None:
    """A reviewer can trace each figure: it stands in evidence.json, as it is or rounded, or in the page's words."""
    text = (pack / "out" / "evidence.json").read_text()
    content = json.loads(text)
    words = (ROOT / "src" / "hedgerow" / "app" / "evidence.toml").read_text()
    heads = " ".join([EXPLANATION, *(head for sheet in build_attack_sheets(ATTACK) for head in sheet.heads)])
    known = {each for source in (text, words, heads) for each in NUMBER.findall(source)}
    for value in [*leaves(content), *intervals(content["evaluation"])]:
        known |= {each for form in forms(value) for each in NUMBER.findall(form)}
    shown = set(NUMBER.findall(read_text((pack / "out" / "evidence.html").read_text())))
    assert sorted(shown - known) == []


def test_every_release_is_explained(pack: Path) -> None:
    """A reviewer reads once, beside the list, what each kind of sum and each noise in it is; no kind lacks words."""
    noises, words = {event.type_name for event in get_args(Event)}, read_words()["noise"]
    assert set(words) == noises
    assert all({**describe_kinds(), **words}[name] for name in noises | {kind.__name__ for kind in kinds()})
    content = json.loads((pack / "out" / "evidence.json").read_text())
    listed = {line[part] for line in content["ledger"] for part in ("kind", "noise")}
    page = " ".join(read_text((pack / "out" / "evidence.html").read_text()).split())
    assert content["ledger_words"].keys() == listed
    assert all(said in page for said in content["ledger_words"].values())


def test_every_part_is_what_a_command_prints(
    pack: Path, evaluated: tuple[Path, Path], hedgerow: Callable[..., Any]
) -> None:
    """Nothing is in the pack that the model, its ledger, a command or a file does not say."""
    content, (model, evaluation) = json.loads((pack / "out" / "evidence.json").read_text()), evaluated
    report = hedgerow("report", model, "--json")
    assert content["report"] == {name: value for name, value in report.items() if name in content["report"]}
    assert content["model"] == {"file": model.name} | {
        name: report[name] for name in content["model"] if name != "file"
    }
    ledger = json.loads(model.read_text())["ledger"]["releases"]
    assert sum(line["releases"] for line in content["ledger"]) == len(ledger) == report["n_releases"]
    # No two lines read the same, and what each says of its releases is so of every one of them.
    lines = {(own["kind"], own["noise"], f"{own['noise_multiplier_at_least']:.4g}"): own for own in content["ledger"]}
    assert len(lines) == len(content["ledger"])
    for each in ledger:
        ratio = each["sigma"] / each["sensitivity"]
        line = lines[each["kind"], each["event"]["type"], f"{ratio:.4g}"]
        assert each["sensitivity"] <= line["sensitivity_at_most"] and each["sigma"] >= line["sigma_at_least"]
        assert ratio >= line["noise_multiplier_at_least"]
    assert content["evaluation"] == json.loads(evaluation.read_text())
    assert content["attack"] == json.loads((pack / "attack.json").read_text())
    delta = str(report["delta"])
    assert content["budget"] == hedgerow("ledger", pack / "north-budget.db", "--delta", delta, "--json")
    for line, file in zip(content["published"], (model, evaluation), strict=True):
        assert (line["file"], line["sha256"]) == (file.name, hashlib.sha256(file.read_bytes()).hexdigest())


def test_the_page_asks_nothing_of_the_network(pack: Path, evaluated: tuple[Path, Path], tmp_path: Path) -> None:
    """Both pages open from disk: no script, and nothing but links within the page and pictures that are in it."""
    model, evaluation = evaluated
    assert main(["report", str(model), "--html", str(tmp_path / "r.html"), "--evaluation", str(evaluation)]) == 0
    for page in ((pack / "out" / "evidence.html").read_text(), (tmp_path / "r.html").read_text()):
        assert "<script" not in page and "url(http" not in page
        assert set(re.findall(r'(?:src|href)="([^"]{5})', page)) <= {"data:"} | set(re.findall(r'href="(#.{4})', page))
        ids = set(re.findall(r' id="([^"]+)"', page))
        assert {anchor for anchor in re.findall(r'href="#([^"]+)"', page)} <= ids
    assert page.count("<img ") == 2


def test_the_entry_is_one_of_the_registry(pack: Path) -> None:
    """It can be sent to OpenDP's registry of deployments: their schema takes it, with what is to be filled in."""
    entry = json.loads((pack / "out" / "registry.yaml").read_text())
    assert list(faults(entry, SCHEMA)) == []
    assert sum("FILL IN" in str(each) for each in leaves(entry)) == 5
    # The check itself can fail.
    entry["deployment"]["basic"] |= {"publication_date": "1/1/2026", "surprise": ""}
    assert len(list(faults(entry, SCHEMA))) == 2


def faults(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """What a schema of this kind (draft 7, as far as it uses it) has against a value."""
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(isinstance(value, kinds[each]) for each in wanted):
        yield f"{value!r} is no {wanted}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{value!r} is none of {schema['enum']}"
    if schema.get("format") == "date":
        try:
            datetime.date.fromisoformat(value)
        except ValueError:
            yield f"{value!r} is no date"
    if isinstance(value, dict):
        yield from (f"{name} is missing" for name in schema.get("required", []) if name not in value)
        for name, own in value.items():
            if name in schema["properties"]:
                yield from faults(own, schema["properties"][name])
            elif schema.get("additionalProperties") is False:
                yield f"{name} is unknown"
    if isinstance(value, list):
        yield from ([] if len(value) >= schema.get("minItems", 0) else ["too few items"])
        yield from (each for own in value for each in faults(own, schema["items"]))


def releases(*events: Event) -> list[dict[str, Any]]:
    """A ledger's releases with the noise that the events say, as JSON."""
    made = []
    for place, event in enumerate(events):
        noise = getattr(event, "epsilon", None)
        ratio = 1 / noise if noise else getattr(event, "noise_multiplier", 0.0)
        sigma = getattr(event, "sigma", 0) or getattr(event, "share_sigma", 0) * getattr(event, "n_shares", 1) ** 0.5
        sigma = sigma or (1000.0 if ratio else 0.0)
        sensitivity = sigma / ratio if ratio else 1.0
        made.append(Release(f"{place}/LeafSums/x", place, "LeafSums", event, 4, sensitivity, sigma))
    return json.loads(Ledger(tuple(made)).to_json())["releases"]  # type: ignore[no-any-return]


def test_the_second_account_shares_nothing() -> None:
    """The recount imports nothing of Hedgerow, so that no fault of an accountant is repeated by it."""
    imports = [
        node for node in ast.walk(ast.parse(Path(recount.__file__).read_text())) if isinstance(node, ast.ImportFrom)
    ]
    assert [each.module for each in imports if (each.module or "").startswith("hedgerow")] == []


@pytest.fixture
def gather(
    evaluated: tuple[Path, Path],
) -> Callable[..., tuple[Model, dict[str, Any]]]:
    """The content of a pack about the model with other releases and another context."""
    file, _ = evaluated
    model = Model.load(file)

    def gather(ledger: Ledger, **context: Any) -> tuple[Model, dict[str, Any]]:
        about = replace(PrivacyContext.from_plan(model.plan), **context)
        other = replace(model, ledger=ledger, report=build_report(ledger, about))
        return other, gather_evidence(file, other, "2026-01-31", book=None, attack=None, evaluation=None)

    return gather


def read_ledger(*events: Event, kind: str = "LeafSums") -> Ledger:
    """A ledger of releases with these events, of which the last is of that kind."""
    made = [Release.from_dict(each) for each in releases(*events)]
    return Ledger((*made[:-1], replace(made[-1], kind=kind)))


@pytest.mark.parametrize(
    ("ledger", "context"),
    [
        (read_ledger(DiscreteGaussianEvent(30.0, 3000, 4)), {"seeded": True}),
        (read_ledger(UnnoisedEvent()), {}),
        (read_ledger(UnnoisedEvent()), {"noise_mode": "distributed"}),
        (read_ledger(DiscreteGaussianSumEvent(20.0, 1000, 4, 4)), {"noise_mode": "distributed", "seeded": True}),
        (read_ledger(LocalGaussianEvent(30.0, 3000, 4), UnnoisedEvent()), {"noise_mode": "local"}),
        (read_ledger(DiscreteGaussianEvent(30.0, 3000, 4)), {"bounds_from_data": True}),
    ],
)
def test_a_void_guarantee_is_not_sold(
    ledger: Ledger, context: dict[str, Any], gather: Callable[..., tuple[Model, dict[str, Any]]]
) -> None:
    """Of a model without a promise the pack says why, drafts no entry, and bounds no attack."""
    model, content = gather(ledger, **context)
    page = read_text(render_evidence(model, content))
    assert content["registry"] is None and content["report"]["guarantee"] == "void"
    assert "No bound holds" in page and "differential privacy bounds" not in page and "it holds against" not in page
    assert ("no exact total" in page) == ("Exact counts are no part" in page) == ("bounds_from_data" in context)
    # Nor is anybody named whom it held against, and where totals left without noise, whoever opened them saw them.
    assert model.report.trust not in page and "the guarantee holds" not in page.lower()
    assert "under differential privacy" not in page
    # Nor is anybody said to be protected, or an epsilon shown in large type.
    figures = re.findall(r'<div class="figures">(.*?)</div></div>', render_evidence(model, content))
    assert [read_text(f"<main>{each}").split() for each in figures] == [["void", "guarantee"]]
    assert "protects" not in dict(content["facts"])
    assert {row[0]: row[3] for row in content["trust"]["rows"]}["the coordinator"].startswith("yes")
    counted = {name: text for name, text in content["facts"] if name in ("releases", "noise")}
    if all(isinstance(event, UnnoisedEvent) for event in ledger.events()):
        assert counted == {"releases": "1 sum without noise", "noise": "none"}


def test_a_recalibrated_model_is_said_to_have_been_updated(
    gather: Callable[..., tuple[Model, dict[str, Any]]],
) -> None:
    """Who reads the card or the account hears of level and slope that came after the training, and only then."""
    training = read_ledger(DiscreteGaussianEvent(30.0, 3000, 4)).releases
    later = replace(training[0], purpose="1/ScoreBins/recalibration", kind="ScoreBins", round=1)
    answers, pages = [], []
    for ledger in (Ledger(training), Ledger((*training, later))):
        model, content = gather(ledger)
        answers.append({line["item"]: line["answer"] for line in content["model_card"]})
        pages.append(render_evidence(model, content))
    assert all(answers[0][item] != answers[1][item] for item in ("12f", "24"))
    assert ["<dt>recalibrated</dt>" in page for page in pages] == [False, True]


def test_a_run_that_broke_off_says_so(gather: Callable[..., tuple[Model, dict[str, Any]]]) -> None:
    """Who signs for a model of some of its rounds reads of how many, and why."""
    model, content = gather(read_ledger(DiscreteGaussianEvent(30.0, 3000, 4)))
    salvaged = Salvage("too-few-sites", 3, 8)
    assert salvaged.text() in read_text(render_evidence(replace(model, salvaged=salvaged), content))


def test_what_is_no_part_of_hedgerow_is_named_as_code(gather: Callable[..., tuple[Model, dict[str, Any]]]) -> None:
    """Who asks for the code of a model by a method of another package is not sent to Hedgerow's alone."""
    _, content = gather(read_ledger(DiscreteGaussianEvent(30.0, 3000, 4)), authors=("the method $own 1 (module own)",))
    answers = {line["item"]: line["answer"] for line in content["model_card"]}
    assert "the method $own 1 (module own)" in answers["18f"]


def test_contents_are_in_the_order_of_the_page(pack: Path) -> None:
    """Who signs finds the parts in the order in which they are listed."""
    page = (pack / "out" / "evidence.html").read_text(encoding="utf-8")
    contents = page[page.index('<nav aria-label="Contents">') : page.index("</nav>")]
    listed = re.findall(r'href="#([^"]*)"', contents)
    assert listed == [own for own in re.findall(r'id="([^"]*)"', page) if own in listed]


SERVER, SHARED = DiscreteGaussianEvent(30.0, 3000, 4), DiscreteGaussianSumEvent(20.0, 1000, 4, 4)
LOCAL = LocalGaussianEvent(30.0, 3000, 4)


TRAININGS: dict[str, Event] = {"server": SERVER, "distributed": SHARED, "local": LOCAL}
LATER: dict[str, tuple[str, Event]] = {
    "by the coordinator": ("ScoreHistogram/evaluation, outline", SERVER),
    "by the sites": ("ScoreHistogram/evaluation, detail", SHARED),
    "by each record": ("ErrorMoments/evaluation, detail", LOCAL),
    "of a column": ("GroupedSums/evaluation, by site", SHARED),
    "by site": ("SiteSums/evaluation, by site", SERVER),
    "at one site": ("ScoreHistogram/evaluation at one site, outline", SERVER),
    "recalibration": ("ScoreBins/recalibration", SERVER),
}


@settings(max_examples=12, deadline=None)
@given(mode=st.sampled_from(sorted(TRAININGS)), later=st.sets(st.sampled_from(sorted(LATER))))
def test_who_sees_what_is_said_of_every_mode(
    mode: str, later: set[str], gather: Callable[..., tuple[Model, dict[str, Any]]]
) -> None:
    """A coordinator is said to have seen exact totals, or to have added noise, if one did in some release, whatever
    came after the training, and only then; what one site did by itself is nobody else's.
    """
    later -= {"by the coordinator", "by the sites", "of a column", "by site"} if mode == "local" else {"by each record"}
    about: dict[str, Event] = {"LeafSums/x": TRAININGS[mode], **dict(LATER[each] for each in sorted(later))}
    made = zip(about, read_ledger(*about.values()), strict=True)
    named = [replace(own, purpose=f"{own.round}/{name}", kind=name.split("/")[0]) for name, own in made]
    ledger = Ledger(tuple(named))
    model, content = gather(ledger, noise_mode=mode)
    trust, seen = model.report.trust, {row[0]: row[1:] for row in content["trust"]["rows"]}
    has_coordinator = mode == "server" or "by the coordinator" in later
    assert seen["the coordinator"][2].startswith("yes") == has_coordinator
    assert ("The coordinator adds the noise" in trust) == has_coordinator
    words = tomllib.loads((ROOT / "src/hedgerow/app/evidence.toml").read_text())["trust"]
    assert (words["alone"][0] in seen) == bool(later & {"at one site", "recalibration"})
    # Of one machine, and of one site's report on its own cost.
    assert seen[words["process"][0]][0] == "all"
    if alone := [own for own in ledger if own.is_at_one_site]:
        cost = build_report(Ledger(tuple(alone)), PrivacyContext(1e-5))
        assert "coordinator" not in cost.trust


@pytest.mark.parametrize("mode", ["server", "distributed"])
@pytest.mark.parametrize("place", ["process", "network", "files", ""])
def test_a_pack_says_of_one_process_nothing_that_only_nodes_make_true(
    mode: str, place: str, gather: Callable[..., tuple[Model, dict[str, Any]]]
) -> None:
    """Whoever reads an entry or a line of the account hears of federation only where nodes made the model."""
    ledger = Ledger(read_ledger(TRAININGS[mode], SERVER).releases[:1])
    _, content = gather(ledger, noise_mode=mode, made_in=place, n_sites=3 if place else 0)
    name = content["registry"]["deployment"]["deployment_model"]["model_name"]
    assert name == ("Federated" if place in ("network", "files") else "Central")
    lies = read_words()["trust"][mode]["lies"]
    assert (lies in content["trust"]["notes"]) == (place != "process")


@pytest.mark.parametrize("n_runs", [0, 1, 3])
def test_a_pack_has_the_account_that_the_report_read(
    n_runs: int, gather: Callable[..., tuple[Model, dict[str, Any]]]
) -> None:
    """Who signs sees all runs over the rows on the page, where the model's file knows them."""
    account = AccountState("hedgerow-budget.db", read="2026-11-28", n_runs=n_runs, epsilon=1.8141) if n_runs else None
    ledger = Ledger(read_ledger(TRAININGS["server"], SERVER).releases[:1])
    model, content = gather(ledger, noise_mode="server", made_in="process", n_sites=3, account=account)
    page, card = read_text(render_evidence(model, content)), {each["item"]: each for each in content["model_card"]}
    before = page[page.rindex(read_words()["layers"]["before"]) :]
    assert ("1.815" in before and "hedgerow-budget.db" in before) == bool(n_runs)
    assert ("knows nothing" in card["12c"]["answer"]) == (not n_runs)


@settings(max_examples=12, deadline=None)
@given(
    mode=st.sampled_from(sorted(TRAININGS)), unit=st.sampled_from(["record", "person"]), is_later=st.booleans(),
    seeded=st.booleans(), prepared=st.booleans(), authors=st.sampled_from([(), ("the method own 1 (module own)",)]),
)  # fmt: skip
def test_sentences_are_true_of_the_run_that_they_are_said_of(
    mode: str, unit: str, is_later: bool, seeded: bool, prepared: bool, authors: tuple[str, ...],
    gather: Callable[..., tuple[Model, dict[str, Any]]],
) -> None:  # fmt: skip
    """Every condition of a promise is named, and no other; of a void one nothing is said but what words mean."""
    training = TRAININGS[mode]
    made = read_ledger(training, LOCAL if mode == "local" else SERVER)
    later = replace(made.releases[1], purpose="1/ErrorMoments/evaluation", kind="ErrorMoments")
    ledger = Ledger((made.releases[0], later) if is_later else made.releases[:1])
    about = {"noise_mode": mode, "unit": unit, "seeded": seeded, "authors": authors, "n_prepared": int(prepared)}
    model, content = gather(ledger, **about)
    names = [name for name, _ in content["promise"] if name]
    said = {"words"} if seeded else {"words", "it holds if", "for example"}
    said |= {"whom"} if unit == "person" and not seeded else set()
    said |= {"epsilon"} if is_later and not seeded else set()
    assert sorted(names) == sorted(said)
    conditions = 0 if seeded else 5 + (unit == "person") + prepared + bool(authors)
    promised = [text for name, text in content["promise"] if name in ("", "it holds if")]
    assert len(promised) == conditions
    if not seeded:
        texts = {name: text for name, text in content["promise"] if name}
        assert f"{_bound_chance(0.1, model.report.epsilon, model.report.delta)} %" in texts["for example"]
    page = read_text(render_evidence(model, content))
    assert all(text in page for _, text in content["promise"])


@given(mu=st.floats(0.01, 4), chance=st.floats(0.01, 0.99))
def test_a_risk_in_plain_terms_is_a_bound(mu: float, chance: float) -> None:
    """No test of a Gaussian release comes to a conclusion oftener than a reader is told."""
    normal, delta = NormalDist(), 1e-5
    ours = get_accountant("gdp").epsilon([DiscreteGaussianEvent(1 / mu, 1000, 1)], delta)
    said = float(_bound_chance(chance, ours, delta))
    assert 100 * normal.cdf(normal.inv_cdf(chance) + mu) <= said <= 100
    odds = math.exp(ours)
    least = 100 * min(odds * chance + delta, 1 - (1 - chance - delta) / odds)
    assert least - 1e-9 <= said <= least + 0.1001


@pytest.mark.parametrize(
    ("about", "is_warned", "is_other"),
    [
        ({}, True, True),
        ({"private": True}, True, True),
        ({"private": False}, False, True),
        ({"private": False, "plan_digest": "own"}, False, False),
    ],
)
def test_figures_of_private_rows_are_never_covered(
    about: dict[str, Any], is_warned: bool, is_other: bool, gather: Callable[..., tuple[Model, dict[str, Any]]]
) -> None:
    """Only a file that says so is of rows that are not private, and only one that names the plan is of this model."""
    model, content = gather(read_ledger(DiscreteGaussianEvent(30.0, 3000, 4)))
    own = {"plan_digest": model.plan.digest} if "plan_digest" in about else {}
    unmarked = {} if "private" in about else {"private": None}
    page = read_text(render_evidence(model, content | {"attack": {**ATTACK, **unmarked, **about, **own}}))
    notes = tomllib.loads((ROOT / "src/hedgerow/app/evidence.toml").read_text())["notes"]
    assert (notes["attack"] in page, notes["attack_other"] in page) == (is_warned, is_other)


@pytest.mark.parametrize("text", ["[]", "{", '{"private": true, "auc": 0.7}', '{"scores": {"auc": 0.7}}'])
def test_only_a_noisy_evaluation_is_taken(text: str, model: Path, tmp_path: Path) -> None:
    """Exact scores of private rows do not come into a page by mistake."""
    (tmp_path / "scores.json").write_text(text)
    arguments = [
        "report",
        str(model),
        "--html",
        str(tmp_path / "r.html"),
        "--evaluation",
        str(tmp_path / "scores.json"),
    ]
    assert main(arguments) == 2
    assert not (tmp_path / "r.html").exists()
    # Nor does anything else pass for figures of attacks.
    assert main(["evidence", str(model), "--out", str(tmp_path / "e"), "--attack", str(tmp_path / "scores.json")]) == 2
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    "path, value",
    [
        (("scores", "auc", "value"), "high"),
        (("groups", "ward", "a", "n_records"), None),
        (("curves", 0, "share"), []),
        (("curves", 0, "class"), None),
        (("sites_left_out",), 3),
    ],
)
def test_an_evaluation_that_cannot_be_shown_is_refused(
    path: tuple[str, ...], value: object, evaluated: tuple[Path, Path], tmp_path: Path
) -> None:
    """A file from elsewhere may have anything anywhere: it is no fault of Hedgerow's, and no page is half written."""
    model, printed = evaluated
    found = json.loads(printed.read_text())
    *outer, last = path
    inner = found
    for step in outer:
        inner = inner[step]
    inner[last] = value
    (tmp_path / "spoilt.json").write_text(json.dumps(found))
    page = tmp_path / "r.html"
    said = main(["report", str(model), "--html", str(page), "--evaluation", str(tmp_path / "spoilt.json")])
    assert (said, page.exists()) == (2, False)
