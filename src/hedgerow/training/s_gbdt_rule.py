"""The settings of S-GBDT: every "auto" decided from the parameters that its authors found best (docs/s-gbdt.md)."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.privacy.events import Event, UnnoisedEvent
from hedgerow.protocol.plan import Plan
from hedgerow.training.s_gbdt_settings import SGbdtTerms, s_gbdt_releases, s_gbdt_terms
from hedgerow.training.s_gbdt_start import n_start_trees, start_length, start_loss
from hedgerow.training.settings import Settings
from hedgerow.trees.losses import Loss
from hedgerow.trees.s_gbdt_loss import s_gbdt_loss


@dataclass(frozen=True)
class SGbdtSettings(Settings):
    """Numbers in place of every "auto"; one tree a round.

    Attributes:
        s_gbdt: rounds, samples, the filter and the initial score.
    """

    s_gbdt: SGbdtTerms

    def loss(self, plan: Plan) -> Loss:
        """See `Settings.loss`: a leaf's support and its sum of clipped gradients."""
        return s_gbdt_loss(plan)

    def n_exchanges(self, plan: Plan) -> int:
        """See `Settings.n_exchanges`."""
        return self.s_gbdt.n_start_exchanges + self.s_gbdt.n_rounds

    def linear_loss(self, plan: Plan) -> Loss:
        """See `Settings.linear_loss`."""
        return start_loss(plan)

    def largest_length(self, plan: Plan) -> int:
        """See `Settings.largest_length`: of a leaf, two statistics, or of a linear start's X^T X."""
        length: int = 2 * 2**self.max_depth
        return max(length, start_length(plan) if self.s_gbdt.is_linear else 0)

    def planned_releases(self, plan: Plan) -> list[Event]:
        """See `Settings.planned_releases`."""
        if self.noise_multiplier == 0:
            return [UnnoisedEvent()]
        return s_gbdt_releases(plan, self.s_gbdt, self.noise_multiplier, self.max_depth)


def resolve_s_gbdt(plan: Plan) -> SGbdtSettings:
    """Decide every "auto" and calibrate the noise; PrivacyError when no noise keeps the promise."""
    model = plan.model
    terms, noise_multiplier = s_gbdt_terms(plan)
    return SGbdtSettings(
        n_trees=terms.n_rounds + (n_start_trees(plan) if terms.is_linear else int(terms.has_initial_score)),
        max_depth=int(model.max_depth) if model.max_depth != "auto" else (2 if plan.label.type == "regression" else 4),
        batch_size=1,
        learning_rate=0.1 if isinstance(model.learning_rate, str) else model.learning_rate,
        interaction="cyclical",
        interaction_size=1,
        interaction_share=0.0,
        noise_ridge=1.0 if isinstance(model.noise_ridge, str) else model.noise_ridge,
        joint_clip=None,
        hessian_scale=None,
        noise_multiplier=noise_multiplier,
        s_gbdt=terms,
    )
