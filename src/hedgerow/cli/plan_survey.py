"""``hedgerow plan init --federated``: as a coordinator, find what a plan leaves open, and write the plan."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.cli.inputs import adapted_sites, adapted_table, check_can_write, listed, read_text
from hedgerow.cli.output import note, number, print_facts, print_json, typed, warn_seeded
from hedgerow.errors import HedgerowError, UsageError
from hedgerow.methods.tasks import SurveyTask, TrainingTask
from hedgerow.plan.plan import PLAN_VERSION, Plan
from hedgerow.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from hedgerow.server.coordinator import RunSession
from hedgerow.server.release import Outcome
from hedgerow.survey.open_plans import OpenPlan, parse_open_plan
from hedgerow.survey.program import Findings

USUAL_DELTA = 1e-6
_N_TRIAL = 1000


@dataclass(frozen=True)
class PlanFile:
    """Where the plan of a survey goes.

    Args:
        path: the file.
        journal: of the survey's run.
        is_new: set another run's journal aside.
        quiet: say nothing.
    """

    path: Path
    journal: Path
    is_new: bool = False
    quiet: bool = False

    def require_room(self) -> None:
        """Before a survey begins or goes on; raises UsageError "plan-exists"."""
        if self.path.exists():
            raise UsageError("plan-exists", path=self.path)

    def look(self, session: RunSession) -> None:
        """Say that a survey is over whose journal says so; raises UsageError where there is no room for its plan."""
        if session.made is None:
            self.require_room()
        elif not self.quiet:
            note(f"The survey is over; what it found is written to {self.path}, and sites that missed the end hear it.")

    def save(self, text: str) -> None:
        """Write the plan, unless it is there already; raises UsageError "plan-exists" for another one."""
        if self.path.exists():
            if self.path.read_text(encoding="utf-8") != text:
                raise UsageError("plan-exists", path=self.path)
            return
        beside = self.path.with_name(f".{self.path.name}.part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.path)


class StatisticsFolder(PlanFile):
    """Where statistics go, and the plan that is drafted of them; `path` is the folder."""

    def require_room(self) -> None:
        """See `PlanFile.require_room`: statistics may be written over, a plan may not."""
        if (self.path / "plan.toml").exists():
            raise UsageError("plan-exists", path=self.path / "plan.toml")


def run(arguments: argparse.Namespace) -> None:
    """Ask the sites, write the plan, say what was found and what it cost."""
    # Extras: only a party that dials or listens needs grpc, only one that reads tables needs pyarrow.
    from hedgerow.cli.coordinator import serve
    from hedgerow.data.drafts import plan_toml

    _check(arguments)
    asked = open_plan_of(arguments)
    # What can be refused without a survey is refused before it is paid for.
    _require_trainable(asked)
    task = SurveyTask(asked)
    out = check_can_write(arguments.out)
    file = PlanFile(out, Path(arguments.journal or f"{out}.survey.journal"), arguments.new_run, arguments.json)
    noise: NoiseSource = SystemNoise(os.urandom) if arguments.seed is None else SeededNoise(arguments.seed)
    outcome, session = serve(arguments, task.plan, noise, file, task)
    plan = plan_found_by(asked, outcome)
    file.save(plan_toml(plan))
    _print(arguments, plan, outcome, session, asked)


def plan_found_by(asked: OpenPlan, outcome: Outcome) -> Plan:
    """The plan that a survey over nodes has found; raises as `OpenPlan.filled`."""
    if not isinstance(outcome.findings, Findings):
        raise HedgerowError("no-numbers")
    return asked.filled(outcome.findings, outcome.ledger)


def open_plan_of(arguments: argparse.Namespace) -> OpenPlan:
    """What is asked for: a TOML file's plan with its gaps, or all columns of a table's header as numbers."""
    if arguments.data.lower().endswith(".toml"):
        adapted_sites({}, [] if arguments.adapter is None else [arguments.adapter])
        return parse_open_plan(read_text(arguments.data))
    from hedgerow.data.sources import column_names

    names = column_names(adapted_table(arguments.data, arguments.adapter))
    if arguments.label is None:
        raise UsageError("usage-survey-missing", missing="--label")
    if arguments.epsilon is None:
        raise UsageError("usage-survey-missing", missing="--epsilon")
    privacy: dict[str, Any] = {
        "epsilon": arguments.epsilon,
        "delta": USUAL_DELTA if arguments.delta is None else arguments.delta,
        "noise": arguments.noise or "distributed",
    }
    if arguments.n_records is not None:
        privacy["n_records"] = arguments.n_records
    return OpenPlan(
        {
            "version": PLAN_VERSION,
            "name": "surveyed",
            "privacy": privacy,
            "label": {"name": arguments.label, "type": arguments.label_type or "binary"},
            "features": [{"name": name, "type": "numeric"} for name in names if name != arguments.label],
        }
    )


def _check(arguments: argparse.Namespace) -> None:
    missing = [name for name in ("roster", "identity", "out") if getattr(arguments, name) is None]
    if missing:
        raise UsageError("usage-survey-missing", missing=f"--{missing[0]}")
    if arguments.bounds_are_public or arguments.codebook is not None:
        raise UsageError("usage-survey-declared")
    if arguments.data.lower().endswith(".toml"):
        said = ("label", "label_type", "epsilon", "delta", "n_records", "noise")
        given = [name for name in said if getattr(arguments, name) is not None]
        if given:
            raise UsageError("usage-survey-twice", option=given[0].replace("_", "-"), path=arguments.data)


def _require_trainable(asked: OpenPlan) -> None:
    """Raises PrivacyError or PlanError where no noise would keep the promise of the plan that comes of it."""
    table = asked.trial.to_dict()
    table["privacy"]["n_records"] = min(table["privacy"]["n_records"], _N_TRIAL)
    _ = TrainingTask(Plan.from_dict(table)).settings


def survey_facts(findings: Findings, names: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """What was found, for a person; a node that has no use for names leaves them out."""
    facts = [("records", f"about {findings.n_records:,}")]
    for index, own in enumerate(findings.ranges):
        low, high = own.bounds
        seen = "" if own.is_seen else " (a guess: nothing stands out of the noise)"
        facts.append((names[index] if names else f"column {index + 1}", f"{number(low)} to {number(high)}{seen}"))
    if findings.label is not None:
        low, high = findings.label.bounds
        facts.append(("label", f"{number(low)} to {number(high)}"))
    if findings.classes:
        facts.append(("classes", listed([str(own) for own in findings.classes])))
    return facts


def sites_in(session: RunSession) -> list[str]:
    """The sites whose vectors are in some release of a run."""
    return sorted({site for survivors in session.run.survivors for site in survivors})


def _print(arguments: argparse.Namespace, plan: Plan, outcome: Outcome, session: RunSession, asked: OpenPlan) -> None:
    sites = sites_in(session)
    cost = outcome.report.epsilon
    if arguments.json:
        spent = {"epsilon": None if math.isinf(cost) else cost, "delta": plan.privacy.delta}
        print_json({"plan": arguments.out, "plan_digest": plan.digest, "sites": sites, "cost": spent})
        return
    if outcome.report.seeded:
        warn_seeded()
    facts = [("sites", f"{len(sites)}: {listed(sites)}")]
    if isinstance(outcome.findings, Findings):
        facts += survey_facts(outcome.findings, asked.columns)
    print_facts([*facts, ("plan", f"written to {arguments.out}, with the survey's releases on its account")])
    print(f"\n  The survey alone cost epsilon {number(cost, 6)} at delta {plan.privacy.delta:.3g}.")
    note(f"Now see what a run of the plan costs with it: {typed(f'hedgerow privacy {arguments.out}')}")
