# SPDX-License-Identifier: Apache-2.0
"""The pack that a reviewer signs: a page, its JSON, and an entry for a public registry.

`gather_evidence` makes the JSON, and the page is made of that alone. Whatever stands on it is in the JSON, and every
number there is from the model's file, from what a command printed into a file that was given, or counted from these.
The words are in `evidence.toml`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from hedgerow.app import recount
from hedgerow.app.attack import render_attack, render_figures_of_attack
from hedgerow.app.document import (
    render_contents,
    render_document,
    render_facts,
    render_printed,
    render_section,
    render_table,
    render_text,
)
from hedgerow.app.inputs import join_names
from hedgerow.app.output import json_text, number
from hedgerow.app.report import (
    Content,
    pick_facts,
    read_evaluation,
    read_printed,
    read_words,
    render_performance,
    render_promise,
)
from hedgerow.app.schema import describe_kinds
from hedgerow.client.budget import BudgetBook
from hedgerow.models.model import Model, write_atomically
from hedgerow.privacy.events import UnnoisedEvent
from hedgerow.privacy.ledger import EVALUATION_KINDS
from hedgerow.privacy.report import PrivacyReport
from hedgerow.privacy.rounding import format_up
from hedgerow.privacy.statement import PLACES, TOGETHER, UNRECORDED
from hedgerow.version import __version__

_LIBRARIES = ("numpy", "numba", "scipy", "cryptography", "pyarrow", "grpcio", "protobuf")
_OF_MODEL = ("outcome", "created_with", "plan_digest", "agreed_digest")
_OF_RUNS = ("begun", "status", "epsilon", "unit", "plan")
_TERMS = ("sampling_rate", "n_shares", "order", "budget", "scope")
"""Terms of an event, beside its noise, that a line of the page's table names."""
_SEEN = ("who", "rows", "one site's exact sums", "exact totals", "noisy totals")


# What is said ---------------------------------------------------------------------------------------------------------


def gather_evidence(
    model_file: Path, model: Model, date: str, *, book: Path | None, attack: Path | None, evaluation: Path | None,
    published: Sequence[Path] = (),
) -> Content:  # fmt: skip
    """Gather the content of evidence.json.

    Args:
        model_file, model: the file, and what it holds.
        date: of the day, as ISO 8601.
        book: a budget book.
        attack: what `hedgerow attack --json` printed.
        evaluation: what `hedgerow evaluate --federated --json` printed.
        published: other files that were published.

    Raises:
        UsageError: a file has no such JSON.
        OSError: a file cannot be read.
        ImportError: without the libraries of the extra "pld".
    """
    report = model.report
    ledger = json.loads(model.ledger.to_json())["releases"]
    budget = None
    if book is not None:
        with closing(BudgetBook(book)) as opened:
            budget = opened.describe(report.delta)
    files = {file: file.read_bytes() for file in (model_file, *([evaluation] if evaluation else []), *published)}
    content: Content = {
        "written_on": date,
        "model": {"file": model_file.name, **model.filing(date)},
        "report": report.to_dict(),
        "facts": report.facts(sites=model.sites),
        "statement": report.statement.to_dict(),
        "ledger": _group_releases(ledger),
        "releases": ledger,
        "budget": budget,
        "published": [
            {"file": file.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for file, data in files.items()
        ],
        "attack": None
        if attack is None
        else read_printed(attack, "--attack", "hedgerow attack", lambda found: render_attack(found, "")),
        "evaluation": None if evaluation is None else read_evaluation(evaluation, model),
        "software": _describe_software(),
    }
    content["recount"] = compare_accounts(content)
    content["recount"]["explained"] = explain_recount(content)
    words = read_words()
    about = describe_kinds() | words["noise"]
    used = dict.fromkeys(line[part] for part in ("kind", "noise") for line in content["ledger"])
    # Kinds of a package that is not installed have no description.
    content["ledger_words"] = {name: about[name] for name in used if name in about}
    said, is_so = _name_values(model, content, words)
    content["model_card"] = [
        {"item": item, "asks": about, "answer": text or "For the authors."}
        for item, about, text in _fill(words["annex"]["card"], said)
    ]
    content["impact"] = _fill(words["annex"]["impact"], said)
    content["promise"] = [_fill(line, said) for condition, *line in words["promise"]["lines"] if is_so[condition]]
    content["trust"] = _describe_trust(model, words["trust"], said)
    holds = report.guarantee == "holds"
    content["registry"] = _draft_entry(model, content, words["registry"], said) if holds else None
    return content


def _group_releases(ledger: Iterable[Mapping[str, Any]]) -> list[Content]:
    """Group releases with equal kind, noise, noise multiplier and terms, one line a group, in first order."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    terms: dict[tuple[str, ...], Content] = {}
    for own in ledger:
        about = {name: value for name in _TERMS if (value := own["event"].get(name, "")) != ""}
        key = own["kind"], own["event"]["type"], number(own["sigma"] / own["sensitivity"], 4), repr(about)
        groups.setdefault(key, []).append(own)
        terms[key] = about
    return [
        {
            "kind": key[0], "noise": key[1], "releases": len(own),
            "norm": "range" if key[1] == "selection" else "L1" if key[1] in recount.PURE else "L2",
            "sensitivity_at_most": max(each["sensitivity"] for each in own),
            "sigma_at_least": min(each["sigma"] for each in own),
            "noise_multiplier_at_least": min(each["sigma"] / each["sensitivity"] for each in own),
            "terms": terms[key],
        }
        for key, own in groups.items()
    ]  # fmt: skip


def compare_accounts(content: Content) -> Content:
    """Recount releases by the reported accountant, with continuous noise, and by the tightest accountant.

    `tightest` is None where a filter over samples may act: what it lets through is known at one Renyi order only.
    `autodp` is the Renyi epsilon by that library, see `count_by_autodp`.
    """
    found, delta = recount.recount_pack(content), content["report"]["delta"]
    costs, bare = (recount.add_up(content["releases"], is_whole) for is_whole in (True, False))
    return found | {
        "continuous": recount.count_epsilon(bare, delta, found["accountant"]),
        "tightest": None if recount.can_act(costs.samples) else recount.count_epsilon(costs, delta, "pld"),
        "autodp": count_by_autodp(content["releases"], delta),
    }


def count_by_autodp(releases: Sequence[Content], delta: float) -> float | None:
    """Return the Renyi epsilon of releases by autodp, as published results count.

    It takes noise for continuous.

    Returns:
        None without autodp, which is an extra, and unless each release is a Gaussian one of all records.
    """
    counts: Counter[float] = Counter()
    for release in releases:
        event = release["event"]
        is_plain = event["type"] in recount.GAUSSIAN and event["type"] != recount.FILTERED
        if not is_plain or event.get("sampling_rate", 1.0) < 1:
            return None
        counts[release["sigma"] / release["sensitivity"]] += event.get("count", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from autodp.mechanism_zoo import GaussianMechanism
            from autodp.transformer_zoo import Composition
        except ImportError:
            return None
        parts = [GaussianMechanism(noise, RDP_off=False, approxDP_off=True, phi_off=True) for noise in counts]
        return float(Composition()(parts, list(counts.values())).get_approxDP(delta)) if parts else 0.0


def explain_recount(content: Content) -> list[str]:
    """Say how the accounts compare; each sentence is there only if its own comparison says so."""
    found, report, kinds = content["recount"], content["report"], {line["noise"] for line in content["ledger"]}
    epsilon, continuous, tightest = found["epsilon"], found["continuous"], found["tightest"]
    if epsilon == math.inf:
        same = "So says the report" if found["agrees"] else "The report says otherwise"
        return [f"No epsilon is a bound for these releases: something had no noise, or next to none. {same}."]
    name, is_pure = found["accountant"], not kinds.isdisjoint(recount.PURE)
    # Leave out pure releases, because the cost of their samples is exact.
    sums = [line for line in content["ledger"] if line["noise"] not in recount.PURE]
    has_samples = any(line["terms"].get("sampling_rate", 1) < 1 for line in sums)
    said = [
        f"recount.py, which is in this pack, finds epsilon {format_up(epsilon, 10)} by {name} where the report has "
        f"{format_up(report['epsilon'], 10)}: {'the figure is reproduced' if found['agrees'] else 'THEY DIFFER'}."
    ]
    if name == "pld" and (is_pure or has_samples) and found["above"] > recount.UP - 1:
        said.append(
            "Privacy loss distributions are dp_accounting's in both figures. Losses are rounded up, here to a coarser "
            f"grid: the figure is {_format_share(found['above'])} larger."
        )
    if found["autodp"] is not None:
        said.append(f"By autodp, as published results count, the Renyi epsilon is {found['autodp']:.10g}.")
    if epsilon > continuous * (1 + 1e-8):
        said.append(
            f"An account that takes the noise for continuous finds {continuous:.10g}: that noise is drawn in whole "
            f"numbers costs {_format_share(epsilon / continuous - 1)}."
        )
    if tightest is None:
        said.append(
            "A filter over samples may act. What its releases cost together is known at one Renyi order, as its "
            "budget: there is no exact account to compare with."
        )
    elif epsilon > tightest * (1 + 1e-4):
        is_mixed = is_pure or has_samples
        exact = "privacy loss distributions (dp_accounting)" if is_mixed else "exact accounting of Gaussian noise (gdp)"
        reasons = {
            f"a sum of epsilons holds without delta, the other figure at delta {report['delta']:g}": name == "pure",
            "a bound stands for each pure release": is_pure and name != "pure",
            "Renyi divergences are known at whole orders": has_samples,
            "Renyi divergences are converted to epsilon and delta": has_samples or name == "rdp",
        }
        said.append(
            f"By {exact} the same releases cost {tightest:.10g}. The figure above is "
            f"{_format_share(epsilon / tightest - 1)} larger, because "
            f"{', and '.join(reason for reason, is_so in reasons.items() if is_so)}."
        )
    return said


def _format_share(share: float) -> str:
    return f"{100 * share:.2g} %"


def _describe_software() -> Content:
    """Return versions of Hedgerow and its numeric libraries, and a digest of Hedgerow's sources."""
    package = Path(str(resources.files("hedgerow")))
    hasher = hashlib.sha256()
    for file in sorted(each for each in package.rglob("*") if each.suffix in (".py", ".toml", ".html", ".css", ".js")):
        hasher.update(f"{file.relative_to(package).as_posix()}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return {
        "hedgerow": __version__,
        "hedgerow_sources_sha256": hasher.hexdigest(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def _name_values(model: Model, content: Content, words: Content) -> tuple[dict[str, str], dict[str, bool]]:
    """Return the values named in the sentences of `evidence.toml`, and the conditions that choose them."""
    plan, report, label = model.plan, model.report, model.plan.label
    facts, holds = dict(content["facts"]), model.report.guarantee == "holds"
    again, n_later = content["recount"], sum(release.is_later for release in model.ledger)
    values = {
        "label": f"{label.name} ({label.type}, {label.kind.describe(label)})",
        "n_features": str(len(plan.features)),
        "feature_names": ", ".join(plan.feature_names),
        "n_sites": str(len(model.sites)),
        "site_names": join_names(model.sites),
        "n_records": f"{plan.privacy.n_records:,}",
        "n_records_origin": content["report"].get("taken_as_public", {}).get("n_records", {}).get("origin", "declared"),
        "outlook": "; ".join(report.outlook),
        "algorithm": plan.model.algorithm,
        "n_trees": str(model.ensemble.n_trees),
        "output": words["output"][label.kind.predicts],
        "unit": report.unit,
        "sites_per_unit": str(report.sites_per_unit),
        "n_later": str(n_later),
        **{f"risk_{chance}": _bound_chance(chance / 100, report.epsilon, report.delta) for chance in (10, 50)},
        "rows": "the row" if report.unit == "record" else f"the rows of a {report.unit}",
        "whom": "a record" if report.unit == "record" else f"a {report.unit}",
        "in_words": f"{facts.get('in words')}.",
        "voided_by": "; ".join(report.voided_by),
        "condition": f", {report.condition}" if report.authors else "",
        "authors": ", ".join(report.authors),
        "releases": facts["releases"],
        "n_releases": f"{report.n_releases:,}",
        "n_choices": str(report.n_choices),
        "n_groups": str(report.n_groups),
        "recount": format_up(again["epsilon"]),
        **{name: content["model"][name] for name in ("plan_digest", "agreed_digest")},
        "model_file": content["model"]["file"],
        "version": model.created_with,
        "place": PLACES.get(report.made_in, words["trust"]["no_place"]),
        "runner": words["trust"]["runner"][_name_place(report)],
    }
    # Whoever guesses the seed can remove its noise, so seeded sums count as exact.
    is_exact = report.seeded or any(line["noise"] == "unnoised" for line in content["ledger"])
    is_so = {
        "trees": model.ensemble.n_trees > 0, "sites": bool(model.sites), "updated": report.n_recalibrations > 0,
        **dict.fromkeys(("bound", "promise", "private"), holds), **dict.fromkeys(("exact", "counts"), is_exact),
        "trials": report.account is not None and report.account.n_runs > 0,
        "evaluated": any(release.kind in EVALUATION_KINDS for release in model.ledger),
        "recounted": again["agrees"],
        "clear": report.sums_in_clear and report.noise_mode != "local", "foreign": bool(report.authors),
        "noisy": any(line["noise"] != "unnoised" for line in content["ledger"]), "local": report.noise_mode == "local",
        "always": True, "of_unit": holds and report.unit != "record", "later": holds and n_later > 0,
        "prepared": holds and report.n_prepared > 0, "stated": holds and bool(report.authors),
        "of_network": holds and _name_place(report) != "process",
        "of_unknown": holds and _name_place(report) == "unknown",
    }  # fmt: skip
    said = words["said"]
    values |= {name: Template(said[name][is_so[name]]).substitute(values) for name in is_so if name in said}
    return values | {"description": Template(said["description"]).substitute(values)}, is_so


def _bound_chance(chance: float, epsilon: float, delta: float) -> str:
    """Bound the chance of a conclusion in percent, rounded up, from itself and from its opposite."""
    factor = math.exp(min(epsilon, 700.0))
    most = min(factor * chance + delta, 1 - (1 - chance - delta) / factor, 1.0)
    return f"{math.ceil(1000 * most) / 10:g}"


def _describe_trust(model: Model, words: Content, said: Mapping[str, str]) -> Content:
    """Describe who sees what, and what a dishonest site could do, in the run's own mode."""
    report = model.report
    is_exact = report.seeded or any(isinstance(event, UnnoisedEvent) for event in model.ledger.events())
    # An evaluation may have had another noise mode; exact totals in any of them count.
    modes = ("exact",) if is_exact else (report.noise_mode, *report.evaluation_modes)
    own = words["server" if "server" in modes else modes[0]]
    totals = {f"{who}_totals": own[who] for who in ("site", "coordinator", "user")}
    is_apt = {
        "clear": report.sums_in_clear, "masks": not report.sums_in_clear and _name_place(report) != "process",
        "groups": report.n_groups > 0, "choices": report.n_choices > 0, "spoils": True,
        "figures": any(release.kind == "SiteSums" for release in model.ledger),
    }  # fmt: skip
    place, places = _name_place(report), {report.made_in, *report.evaluated_in}
    seeing = {"process": ("process", "users"), "nodes": ("site", "coordinator", "users")}
    rows = [words[who] for who in seeing.get(place, ("site", "coordinator", "users", "process"))]
    rows += [words["process"]] if place == "nodes" and places & {*TOGETHER, UNRECORDED} else []
    rows += [words["alone"]] if any(each.is_at_one_site for each in model.ledger) else []
    # In one process there is no second party to lie to.
    lies = [words[mode]["lies"] for mode in modes if mode != "exact" and place != "process"]
    trusted = [report.trust, *lies] if report.guarantee == "holds" else [words["void"]]
    notes = [*trusted, *(words["words"][name] for name in is_apt if is_apt[name])]
    notes += [words["places"][place]]
    return {"rows": _fill(rows, {**said, **totals}), "notes": _fill(notes, said)}


def _name_place(report: PrivacyReport) -> str:
    """Return "process", "nodes" or "unknown" for where the training was made."""
    return "process" if report.made_in in TOGETHER else "nodes" if report.made_in in PLACES else "unknown"


def _draft_entry(model: Model, content: Content, words: Content, said: Mapping[str, str]) -> Content:
    """Draft an entry of the registry's schema."""
    report, facts = model.report, dict(content["facts"])
    public = [("sites", "their names, and that they take part")]
    public += [] if report.public is None else report.public.facts(report.n_prepared)
    epsilon, is_pure = float(format_up(report.epsilon)), report.accounted_by == "pure"
    entry: Content = _fill(words, {
        **said, **{name.replace(" ", "_"): text for name, text in facts.items()},
        "slug": re.sub(r"[^a-z0-9]+", "_", model.plan.name.lower()).strip("_") or "model",
        "plan_name": model.plan.name, "date": content["written_on"], "mode": report.noise_mode,
        "public": "; ".join(f"{name}: {text}" for name, text in public),
        "variant": "Pure DP" if is_pure else "Approximate DP",
        # A file that does not say where it was made may be of one process.
        "deployment": "Local" if report.noise_mode == "local"
        else "Federated" if _name_place(report) == "nodes" else "Central",
        "trust": report.trust,
        "mechanisms": ", ".join(sorted({line["noise"] for line in content["ledger"]})),
    })  # fmt: skip
    cost = {"epsilon": epsilon if epsilon >= report.epsilon else report.epsilon, "delta": report.delta}
    if is_pure:
        del cost["delta"]
    entry["deployment"]["privacy_loss"]["privacy_parameters"] = cost
    return entry


def _fill(words: Any, values: Mapping[str, str]) -> Any:
    """Replace $names by values in all texts of nested tables and lists."""
    if isinstance(words, Mapping):
        return {name: _fill(each, values) for name, each in words.items()}
    if isinstance(words, list):
        return [_fill(each, values) for each in words]
    return Template(words).substitute(values).strip() if isinstance(words, str) else words


# The pages ------------------------------------------------------------------------------------------------------------


def write_evidence(folder: Path, model: Model, content: Content) -> dict[str, Path]:
    """Write evidence.html, evidence.json, recount.py and, if the guarantee holds, registry.yaml.

    Older files are replaced.
    """
    texts = {"evidence.json": json_text(content) + "\n", "evidence.html": render_evidence(model, content)}
    texts["recount.py"] = Path(recount.__file__).read_text(encoding="utf-8")
    if content["registry"] is not None:
        # Every JSON text is also YAML.
        texts["registry.yaml"] = json_text(content["registry"]) + "\n"
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return {name: folder / name for name in texts}


def render_evidence(model: Model, content: Content) -> str:
    """Render the page of a pack from its JSON and the model's pictures."""
    words = read_words()
    titles, notes = words["layers"], words["notes"]
    report, again = content["report"], content["recount"]
    # Show enough digits for a difference to be visible.
    counts = [
        (by, f"{found:.10g}" if isinstance(found, float) else str(found))
        for by, found in (
            (f"Hedgerow, {report['accounted_by']}", report["epsilon"]),
            (f"{again['by']} ({again['version']})", again["epsilon"]),
        )
    ]
    parts: dict[str, list[str]] = {
        "promise": render_promise(content),
        "account": [
            render_facts(pick_facts(content["facts"], "releases", "recalibrated")),
            _render_table("Releases", content["ledger"]),
            render_facts(content["ledger_words"].items()),
            render_text(notes["recount"]),
            *map(render_text, again["explained"]),
            render_table("Counted again, beside Hedgerow's figure", ("by", "epsilon"), counts),
        ],
        "trust": [
            render_table("Who sees what", _SEEN, content["trust"]["rows"]),
            *map(render_text, content["trust"]["notes"]),
            render_facts(pick_facts(content["facts"], "groups of sites", "sums of sites")),
        ],
        "gaps": [render_facts(pick_facts(content["facts"], "not covered")), render_facts(words["gaps"].items())],
        "public": [render_facts(pick_facts(content["facts"], "taken as public")), _render_public(content["report"])],
        "before": _render_budget(content, notes),
        "published": [
            render_text(notes["published"]),
            _render_table("Files", content["published"]),
            render_facts((name.replace("_", " "), str(content["model"][name])) for name in _OF_MODEL),
            *([] if model.salvaged is None else [render_text(model.salvaged.text(), "void")]),
        ],
        "attacks": _render_attack(content, notes),
        "performance": render_performance(content["evaluation"], model, notes),
        "card": [
            render_text(notes["card"]),
            _render_table("TRIPOD+AI", content["model_card"]),
        ],
        "impact": [render_facts(map(tuple, content["impact"]))],
        "registry": [render_text(notes["registry"]), render_printed(json_text(content["registry"]))]
        if content["registry"]
        else [render_text(notes["no_registry"])],
        "software": [
            render_text(Template(notes["software"]).substitute(version=content["model"]["created_with"])),
            render_facts(content["software"].items()),
        ],
        "sign": [render_text(notes["sign"]), *(render_text(line, "sign") for line in ("Name", "Date, signature"))],
    }  # fmt: skip
    contents = render_contents(titles[name] for name in parts)
    body = [render_text(notes["reading"]), render_text(notes["order"], "muted"), contents]
    body += [render_section(titles[name], blocks) for name, blocks in parts.items()]
    subtitle = f"{content['model']['plan_name']}: {content['model']['file']}, {content['written_on']}"
    return render_document("Evidence for reviewers", subtitle, body)


def _render_table(title: str, rows: Sequence[Content]) -> str:
    heads = [name.replace("_", " ") for name in rows[0]] if rows else ["none"]
    return render_table(title, heads, [[_format_cell(cell) for cell in row.values()] for row in rows])


def _render_public(report: Content) -> str:
    """Render each column taken as public, with everything that the report states about it."""
    columns = report.get("taken_as_public", {}).get("columns", [])
    rows = []
    for each in columns:
        more = [(name, value) for name, value in each.items() if name not in ("name", "role", "type", "origin")]
        said = [f"{name.replace('_', ' ')} {_format_cell(value)}" for name, value in more]
        rows.append((each["name"], each["role"], each["type"], each["origin"], "; ".join(said)))
    return render_table("Public columns", ("column", "role", "type", "from", "values"), rows)


def _render_budget(content: Content, notes: Mapping[str, str]) -> list[str]:
    """Render what the account held when the model was made, and the runs of each data set of the book, if given."""
    account = pick_facts(content["facts"], "account")
    parts = [render_facts(account)] if account else []
    if content["budget"] is None:
        return [*parts, render_text(notes["no_book"])]
    parts.append(render_text(notes["book"]))
    for data_set in content["budget"]["data_sets"]:
        epsilon, delta = format_up(data_set["epsilon"]), format_up(content["budget"]["delta"], 3)
        said = f"{data_set['data_set'] or 'All rows of the book'}: epsilon {epsilon} together at delta {delta}"
        own = content["model"]["plan_digest"], content["model"]["agreed_digest"]
        runs = [{**run, "epsilon": format_up(run["epsilon"])} for run in data_set["runs"]]
        rows = [
            (*(_format_cell(run[name] or "?") for name in _OF_RUNS), "yes" if run["plan_digest"] in own else "no")
            for run in runs
        ]
        parts += [render_text(said), render_table(data_set["data_set"], (*_OF_RUNS, "this plan"), rows)]
    return parts


def _render_attack(content: Content, notes: Mapping[str, str]) -> list[str]:
    """Render an attack's figures, marked if they are of private rows or of another plan."""
    attack, own = content["attack"], (content["model"]["plan_digest"], content["model"]["agreed_digest"])
    if attack is None:
        return [render_text(notes["no_attack"])]
    # Treat rows as private unless the file states the opposite.
    is_private = attack.get("private", True) is not False
    note = render_text(notes["attack"], "void") if is_private else render_text(notes["attack_public"])
    other = [] if attack.get("plan_digest") in own else [render_text(notes["attack_other"], "void")]
    return [note, *other, *render_figures_of_attack(attack), render_text(notes["attack_words"], "muted")]


def _format_cell(value: Any) -> str:
    """Format a cell of a table: floats with six digits, integers with commas, lists item by item."""
    if isinstance(value, list | tuple):
        return ", ".join(_format_cell(each) if isinstance(each, float) else str(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_format_cell(each)}" for name, each in value.items())
    return number(value, 6) if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
