"""What a coordinator's run is given."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.methods.tasks import Task, TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.roster import Roster
from hedgerow.secagg.transitions import Entropy
from hedgerow.server.evaluation import EvaluatedModel
from hedgerow.server.events import Observer, nobody_watches


@dataclass(frozen=True)
class RunSetup:
    """What the coordinator's operator gives it.

    Attributes:
        plan: the plan.
        roster: who may take part, and this coordinator's key.
        identity: this coordinator's signing key.
        noise: where central noise comes from.
        entropy: the source of the run's number: ``os.urandom`` but in tests.
        observer: told of everything that happens.
        evaluation: the model to be evaluated; None to train one. `plan` is its plan then.
    """

    plan: Plan
    roster: Roster
    identity: Identity
    noise: NoiseSource
    entropy: Entropy
    observer: Observer = nobody_watches
    evaluation: EvaluatedModel | None = None

    @property
    def run_plan(self) -> Plan:
        """The plan that says who adds the noise; another one than the model's where an evaluation chooses that."""
        return self.task.run_plan

    @property
    def task(self) -> Task:
        """What the run is for."""
        return TrainingTask(self.plan) if self.evaluation is None else self.evaluation.task
