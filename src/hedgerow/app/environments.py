# SPDX-License-Identifier: Apache-2.0
"""A study from Python: one plan, carried out in a simulation, over processes of this machine, or over real sites.

    study = hedgerow.Study("plan.toml")
    result = study.run(hedgerow.Simulation({"north": "north.csv", "south": "south.csv", "west": "west.csv"}))
    result.model.save("model.json")

Then how well the model predicts rows that the sites hold out, which costs as well: `Study.evaluate`.

`Processes` takes the same tables; `Federation` takes the coordinator's keys instead, and each site runs
`hedgerow node`, or `hedgerow.app.node.take_part`. What noise, masks and ledger do is the same in all three.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hedgerow.app.evaluation import Sites, journal_file, prepare_evaluation, read_sites
from hedgerow.app.inputs import check_can_write, read_plan
from hedgerow.app.options import CoordinatorOptions
from hedgerow.app.output import end_log, note
from hedgerow.app.progress import list_contributors
from hedgerow.client.node import available_threads, has_compiled, seed_samplings, use_threads
from hedgerow.errors import EnvironmentFault
from hedgerow.local.accounts import Account, RunFacts, process_account
from hedgerow.local.progress import TrainingProgress
from hedgerow.local.training import FederatedEvaluation, check_sites, evaluate_federated, train
from hedgerow.methods.tasks import TrainingTask
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import list_foreign_parts
from hedgerow.plan.toml import plan_toml, toml_section
from hedgerow.plugins import describe_plugin
from hedgerow.privacy.events import Event
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.noise import NoiseSource, make_noise
from hedgerow.privacy.report import PrivacyReport
from hedgerow.privacy.statement import NETWORK, PROCESS, PROCESSES
from hedgerow.server.release import EvaluatedModel
from hedgerow.transport.identities import (
    PRIVATE_SUFFIX,
    PinnedRoster,
    PrivateIdentity,
    Role,
    build_roster,
    create_identity,
    read_roster,
    write_new,
)

Table = str | os.PathLike[str]


@dataclass(frozen=True)
class StudyResult:
    """Result of a run: a model, and the sites with rows in it."""

    model: Model
    sites: tuple[str, ...]

    @property
    def report(self) -> PrivacyReport:
        """The model's promise and cost, with the account of this process where that has its rows."""
        return self.model.report


class Environment(Protocol):
    """Place where a plan is carried out."""

    @property
    def sites(self) -> Sequence[str]:
        """The names of all sites."""

    def run(self, plan: Plan, seed: int | None) -> StudyResult:
        """Carry out a plan's training; see `Study.run`."""

    def evaluate(self, model: Model, asked: EvaluatedModel, seed: int | None) -> FederatedEvaluation:
        """Evaluate a model; see `Study.evaluate`."""


class Study:
    """A plan for several sites to carry out together.

    Args:
        plan: the plan, or its TOML file.

    Raises:
        PlanError: the plan cannot be read.
    """

    def __init__(self, plan: Plan | Table) -> None:
        self.plan = plan if isinstance(plan, Plan) else read_plan(os.fspath(plan))

    def run(self, environment: Environment, *, seed: int | None = None) -> StudyResult:
        """Train one model over all sites.

        Args:
            environment: `Simulation`, `Processes` or `Federation`.
            seed: draws the noise from a seed, for experiments only: it voids the guarantee. None takes the operating
                system's generator.

        Raises:
            HedgerowError: why there is no model.
        """
        return environment.run(self.plan, seed)

    def evaluate(
        self,
        model: Model,
        environment: Environment,
        *,
        epsilon: float,
        noise: str = "",
        by: Sequence[str] = (),
        seed: int | None = None,
    ) -> FederatedEvaluation:
        """Measure with noise how well a model predicts held-out rows; the model's account counts it.

        Args:
            model: what `run` has made, or a file's (`Model.load`).
            environment: as for `run`, over the tables of the rows that are held out.
            epsilon: what this may cost at the plan's delta, > 0.
            noise: who adds it, "distributed" or "server"; "" takes the sites, or the plan's "local".
            by: columns by whose public groups the same is measured, with a release more for each; "site" for each site,
                by noise of its own: in a federation only where a site's policy allows it.
            seed: as for `run`.

        Returns:
            What was found, what it cost, and `model` with that on its account: keep this one. `Federation` writes it.

        Raises:
            HedgerowError: why nothing was measured.
        """
        asked = prepare_evaluation(model, epsilon, None, noise, by, environment.sites)
        return environment.evaluate(model, asked, seed)


@dataclass(frozen=True)
class Simulation:
    """All sites in this process, over their tables.

    Attributes:
        tables: each site's file or URL.
        n_threads: None for all.
    """

    tables: Mapping[str, Table]
    n_threads: int | None = None

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, sorted."""
        return sorted(self.tables)

    def run(self, plan: Plan, seed: int | None) -> StudyResult:
        """Train over the tables in this process; see `Study.run`."""
        check_sites(plan, len(self.tables))
        sites = read_sites(self.tables, plan, quiet=True)
        noise = make_noise(seed, os.urandom)
        model = train_with_progress(plan, sites, noise, n_threads=self.n_threads, quiet=True, seed=seed)
        account = process_account().read_state(plan.privacy.unit, plan.privacy.delta)
        return StudyResult(model.with_account(account), tuple(sorted(sites)))

    def evaluate(self, model: Model, asked: EvaluatedModel, seed: int | None) -> FederatedEvaluation:
        """Evaluate over the tables in this process; see `Study.evaluate`."""
        sites, task = read_sites(self.tables, model.plan, quiet=True), asked.task
        noise = make_noise(seed, os.urandom)
        with use_threads(self.n_threads or available_threads()) as n_threads:
            found = evaluate_federated(
                model, sites, epsilon=task.epsilon, noise=noise, delta=task.delta, n_threads=n_threads, by=task.by,
                mode=task.noise,
            )  # fmt: skip
        return replace(found, model=found.model.evaluated(PROCESS, model)).with_account(process_account())


@dataclass(frozen=True)
class Federation:
    """The coordinator of real sites, which dial it; started again, it continues its run.

    Attributes:
        roster, identity: files, as for `hedgerow coordinator`.
        listen: where nodes dial, HOST:PORT.
        out: the model file to write; the run's journal is beside it.
        new_run: set the journal of an earlier run aside, which stays counted.
        made_in: what the model's report says of this place, a name of `hedgerow.privacy.statement.PLACES`.
    """

    roster: Table
    identity: Table
    listen: str = "127.0.0.1:7443"
    out: Table = "model.json"
    new_run: bool = False
    made_in: str = NETWORK

    @property
    def sites(self) -> Sequence[str]:
        """Names of the roster's sites."""
        return [site.name for site in read_roster(Path(self.roster)).sites]

    def run(self, plan: Plan, seed: int | None, check: Callable[[], object] = lambda: None) -> StudyResult:
        """Train as the coordinator of the roster's sites, and write the model; see `Study.run`.

        Args:
            check: is called every few seconds; what it raises ends the run here.
        """
        # Imported here, because grpc is an extra that only a party that dials or listens needs.
        from hedgerow.app.coordinator import ModelFile, train_over_nodes

        out = check_can_write(str(self.out))
        file = ModelFile(out, None, Path(f"{out}.journal"), self.new_run, quiet=True, made_in=self.made_in)
        with self._open_options(seed) as options:
            model, session = train_over_nodes(options, plan, file, shows=check)
        return StudyResult(model, tuple(list_contributors(session)))

    def evaluate(
        self, model: Model, asked: EvaluatedModel, seed: int | None, check: Callable[[], object] = lambda: None
    ) -> FederatedEvaluation:
        """Evaluate as the coordinator, and write the model; see `Study.evaluate`, and `run` for `check`."""
        from hedgerow.app.coordinator import ModelFile, evaluate_over_nodes

        out = check_can_write(str(self.out))
        journal = Path(journal_file(out, model))
        file = ModelFile(out, model, journal, self.new_run, quiet=True, made_in=self.made_in)
        with self._open_options(seed) as options:
            return evaluate_over_nodes(options, asked, model, file, check)[0]

    @contextmanager
    def _open_options(self, seed: int | None) -> Iterator[CoordinatorOptions]:
        identity, roster = str(self.identity), str(self.roster)
        try:
            yield CoordinatorOptions(identity=identity, roster=roster, listen=self.listen, seed=seed, quiet=True)
        finally:
            end_log()


_SECONDS_TO_LEAVE = 60.0


@dataclass(frozen=True)
class Processes:
    """A node for each site in a process of its own, and the coordinator here: real sockets, TLS, masks and journals.

    Attributes:
        tables: each site's file or URL, by the site's name.
        folder: a new one for keys, states and logs of all parties; None for one that is removed at the end.
    """

    tables: Mapping[str, Table]
    folder: Table | None = None

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, sorted."""
        return sorted(self.tables)

    def run(self, plan: Plan, seed: int | None) -> StudyResult:
        """Train over a node process for each table; EnvironmentFault "node-process" if a node fails."""
        privacy = plan.privacy
        rules = {"max_epsilon": privacy.epsilon, "delta": privacy.delta, "noise": [privacy.noise]}
        task = TrainingTask(plan)
        facts = RunFacts.of_plan(plan, is_void=seed is not None or plan.reads_quantiles)
        with _charge_whole(facts, task.schedule.events, read_prepared_events(plan)):
            with self._federate(plan, rules, []) as (federation, check):
                result = federation.run(plan, seed, check)
        account = process_account().read_state(privacy.unit, privacy.delta)
        return replace(result, model=result.model.with_account(account))

    def evaluate(self, model: Model, asked: EvaluatedModel, seed: int | None) -> FederatedEvaluation:
        """Evaluate over a node process for each table; raise as `run`."""
        task = asked.task
        rules: dict[str, Any] = {"max_epsilon": task.epsilon, "delta": task.delta, "site_figures": True}
        rules["noise" if task.noise == "local" else "evaluation_noise"] = [task.noise]
        facts = RunFacts.of_plan(model.plan, is_void=seed is not None, name=f"evaluation of {model.plan.name}")
        with _charge_whole(facts, task.schedule.events), tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.json")
            model.save(file)
            with self._federate(model.plan, rules, ["--model", str(file), "--held-out"]) as (federation, check):
                found = federation.evaluate(model, asked, seed, check)
        return found.with_account(process_account())

    @contextmanager
    def _federate(
        self, plan: Plan, rules: Mapping[str, Any], options: Sequence[str]
    ) -> Iterator[tuple[Federation, Callable[[], None]]]:
        """Start nodes, and yield the coordinator with a function that raises if a node has failed.

        The nodes end with the block.

        Args:
            rules: lines of each site's policy.
            options: of a node, before its table.
        """
        check_sites(plan, len(self.tables))
        # Read the tables now: nodes refuse nothing because of rows, but this user may hear of faults before the run
        # costs.
        read_sites(self.tables, plan, quiet=True)
        with ExitStack() as stack:
            folder = Path(self.folder or stack.enter_context(tempfile.TemporaryDirectory()))
            make_keys(folder, dict.fromkeys(self.tables, folder))
            write_new(folder / "plan.toml", plan_toml(plan))
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"127.0.0.1:{free.getsockname()[1]}"
            nodes = {name: self._start(name, plan, folder, address, rules, options) for name in self.tables}
            for node in nodes.values():
                stack.callback(_end, node)

            def check() -> None:
                for name, node in nodes.items():
                    if node.poll():
                        said = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                        raise EnvironmentFault("node-process", name=name, said=said[-2000:].strip())

            coordinator = folder / f"coordinator{PRIVATE_SUFFIX}"
            out = folder / "model.json"
            yield Federation(folder / "roster.toml", coordinator, address, out, made_in=PROCESSES), check
            # The model is written, so end a node that does not end by itself.
            with suppress(subprocess.TimeoutExpired):
                for node in nodes.values():
                    node.wait(_SECONDS_TO_LEAVE)

    def _start(
        self, name: str, plan: Plan, folder: Path, address: str, rules: Mapping[str, Any], before: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        # The policy is for one run over tables of this user alone.
        policy = folder / f"{name}.policy.toml"
        rules = {"version": 1, "data_set": name, "min_sites": plan.federation.min_sites, **rules}
        if foreign := {part["module"] for part in list_foreign_parts(plan)} & sys.modules.keys():
            # Nodes may run the plug-ins that this process runs already.
            rules["plugins"] = [describe_plugin(sys.modules[module]) for module in sorted(foreign)]
        write_new(policy, toml_section("", rules))
        options = ["--plan", str(folder / "plan.toml"), "--policy", str(policy)]
        options += ["--roster", str(folder / "roster.toml"), "--identity", str(folder / f"{name}{PRIVATE_SUFFIX}")]
        options += ["--connect", address, "--threads", str(max(1, available_threads() // len(self.tables)))]
        return start_node([*before, str(self.tables[name]), *options], folder / f"{name}.log")


@contextmanager
def _charge_whole(facts: RunFacts, events: Sequence[Event], earlier: Sequence[Event] = ()) -> Iterator[None]:
    """Charge this process what nodes reserve in books of their own, which may be gone when they have ended."""
    with process_account().open_run(facts, events, earlier=earlier) as run:
        for event in events:
            run.charge(event)
        yield


def make_keys(folder: Path, places: Mapping[str, Path]) -> tuple[PrivateIdentity, PinnedRoster]:
    """Make keys of a coordinator in a folder, and of each site in a place of its own, and a roster.toml."""
    for place in (folder, *places.values()):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    coordinator = create_identity(folder, "coordinator", Role.COORDINATOR)[0]
    sites = [create_identity(place, name, Role.SITE)[0].public for name, place in places.items()]
    roster = build_roster(coordinator.public, sites)
    write_new(folder / "roster.toml", roster.to_toml())
    return coordinator, roster


def start_node(options: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a ``hedgerow node`` process with its output in a file; it uses no proxy."""
    environment = {**os.environ, "no_proxy": "127.0.0.1,localhost"}
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "hedgerow", "node", *options], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip


def _end(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is None:
        node.terminate()
    node.wait()


def train_with_progress(
    plan: Plan,
    sites: Sites,
    noise: NoiseSource,
    *,
    n_threads: int | None = None,
    quiet: bool,
    account: Account | None = None,
    seed: int | None = None,
    title: str = "Training",
) -> Model:
    """Train over the sites with a progress bar; a seed also draws samples, if the method has any.

    Args:
        account: where the run is charged; None for that of this process.
    """
    sizes = {name: sites[name].n_records for name in sorted(sites)}
    sampling = None if seed is None else seed_samplings(seed, sizes)
    if not quiet and not has_compiled():
        note("This is the first run here: inner loops are compiled, which takes a minute or two, once.")
    with (
        use_threads(n_threads or available_threads()) as allowed,
        TrainingProgress(plan, len(sites), quiet=quiet, title=title) as progress,
    ):
        model = train(
            plan, sites, noise=noise, account=account, n_threads=allowed, progress=progress, sampling=sampling
        )
        return model.made(PROCESS, len(sites))
