# SPDX-License-Identifier: Apache-2.0
"""Named methods as settings of a plan: those of Maddock et al., of four other papers, and our default.

Pure data. A preset is the [model] section of a plan, that of its algorithm, and the accountant, with its source.
`apply_preset` writes it over a plan's own, and keeps nothing of the plan's [model] but its structure seed and which
features may meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hedgerow.errors import UsageError
from hedgerow.plan.plan import Plan
from hedgerow.plan.registry import rules_by_method, section_name, sections

Values = Mapping[str, Any]

_PAPER = "Maddock et al., CCS'22"
_COMMON: Values = {
    "max_depth": 4,
    "n_candidates": 32,
    "learning_rate": 0.3,
    "leaf_ridge": 1.0,
    "noise_ridge": 0.0,
    "leaf_clip": 2.0,
    "joint_clip": "none",
    "hessian_scale": 1.0,
}
"""Section 6.1: Q = 32, eta = 0.3, beta = 2; d = 4 as in its tables. Lambda is not stated there; XGBoost's is 1."""
_RANDOM: Values = {**_COMMON, "split_method": "totally_random", "n_trees": 100, "batch_size": 1}
_HISTOGRAMS: Values = {**_COMMON, "split_method": "hist", "n_trees": 100, "batch_size": 1}
_UNIFORM: Values = {"split_candidates": "uniform"}
_IH: Values = {"split_candidates": "iterative_hessian", "candidate_rounds": 5}
_DP_XGBOOST = "Grislain and Gonzalvez, 2021"
_DP_XGBOOST_MODEL: Values = {"algorithm": "dp-xgboost", "n_trees": 20, "learning_rate": 0.3, "leaf_ridge": 0.1}
"""Its section on experiments, which follows Li et al.; it does not state a depth."""
_S_GBDT_MODEL: Values = {
    "algorithm": "s-gbdt", "n_trees": 150, "max_depth": 6, "learning_rate": 0.5, "leaf_ridge": 50.0, "noise_ridge": 0.0,
    "leaf_clip": 1e5,
}  # fmt: skip
_SINGLE: Values = {"interaction": "cyclical", "interaction_size": 1}
_ALL: Values = {"interaction": "cyclical", "interaction_size": "all"}


@dataclass(frozen=True)
class Preset:
    """A named method.

    Attributes:
        name: the name for `find_preset`.
        title: the papers' name.
        source: where it is described.
        model: the plan's [model]; what is left out keeps the plan format's default.
        accountant: of the plan's [privacy]; in place of "gdp" the plan names what its method counts more closely by.
        privacy: further fields of the plan's [privacy].
        section: the section of the algorithm that `model` names, when it is not boosting.
        trees_per_feature: trees for each feature of the plan, instead of `n_trees`; 0 if they do not depend on it.
        private: False for a reference without privacy, which sets epsilon to infinity.
    """

    name: str
    title: str
    source: str
    model: Values
    accountant: str = "rdp"
    trees_per_feature: int = 0
    private: bool = True
    privacy: Values = field(default_factory=dict)
    section: Values = field(default_factory=dict)

    @property
    def section_name(self) -> str:
        """The name of the section of the preset's algorithm; empty for boosting, which has none."""
        name = section_name(self.model.get("algorithm", ""))
        return name if name in sections() else ""


_LIST = (
    Preset(
        "dp-ebm",
        "DP-EBM",
        f"Nori et al., ICML'21, as in {_PAPER}, table 2: gradient updates, T trees for each of the m features, "
        "uniform candidates, RDP instead of GDP",
        {**_RANDOM, **_UNIFORM, **_SINGLE, "weight_update": "gradient"},
        trees_per_feature=100,
    ),
    Preset(
        "dp-ebm-newton",
        "DP-EBM Newton",
        f"{_PAPER}, section 5.3.3: DP-EBM with Newton updates and T trees in all",
        {**_RANDOM, **_UNIFORM, **_SINGLE, "weight_update": "newton"},
    ),
    Preset(
        "dp-rf",
        "DP-RF",
        f"Fletcher and Islam, AusDM'15, as in {_PAPER}, table 2: averaging of T random trees over all features",
        {**_RANDOM, **_UNIFORM, **_ALL, "weight_update": "averaging", "batch_size": "all"},
    ),
    Preset(
        "dp-gbm",
        "DP-GBM",
        f"{_PAPER}, section 6.6: histograms over all features with gradient updates",
        {**_HISTOGRAMS, **_UNIFORM, **_ALL, "weight_update": "gradient"},
    ),
    Preset(
        "feverless",
        "FEVERLESS (uniform)",
        f"Wang et al., 2021, as in {_PAPER}, table 2: histograms over all features with Newton updates; uniform "
        "candidates instead of a quantile sketch",
        {**_HISTOGRAMS, **_UNIFORM, **_ALL, "weight_update": "newton"},
    ),
    Preset(
        "dp-tr-newton",
        "DP-TR Newton",
        f"{_PAPER}, section 5.3.3: random trees over all features, uniform candidates, Newton updates",
        {**_RANDOM, **_UNIFORM, **_ALL, "weight_update": "newton"},
    ),
    Preset(
        "dp-tr-newton-ih",
        "DP-TR Newton IH",
        f"{_PAPER}, table 6: DP-TR Newton with candidates by 5 rounds of iterative Hessians",
        {**_RANDOM, **_IH, **_ALL, "weight_update": "newton"},
    ),
    Preset(
        "dp-tr-newton-ih-ebm",
        "DP-TR Newton IH EBM",
        f"{_PAPER}, section 5.3.3: DP-TR Newton IH with one feature per tree, in turn",
        {**_RANDOM, **_IH, **_SINGLE, "weight_update": "newton"},
    ),
    Preset(
        "dp-tr-batch-newton-ih-ebm-p025",
        "DP-TR Batch Newton IH EBM (p=0.25)",
        f"{_PAPER}, section 5.3.3: DP-TR Newton IH EBM in batches of a quarter of the trees",
        {**_RANDOM, **_IH, **_SINGLE, "weight_update": "newton", "batch_size": 25},
    ),
    Preset(
        "dp-tr-batch-newton-ih-ebm-p1",
        "DP-TR Batch Newton IH EBM (p=1)",
        f"{_PAPER}, section 5.3.3: DP-TR Newton IH EBM in a single batch",
        {**_RANDOM, **_IH, **_SINGLE, "weight_update": "newton", "batch_size": "all"},
    ),
    Preset(
        "ldp",
        "LDP baseline",
        f"{_PAPER}, section 5.3: each user adds the noise to its own gradients. The paper sends them once a tree and "
        "lets the server build the tree, which needs every record's features; here the trees are random, so that a "
        "tree takes one noisy answer and the features stay where they are (DP-TR Newton in the local model)",
        {**_RANDOM, **_UNIFORM, **_ALL, "weight_update": "newton"},
        privacy={"noise": "local"},
    ),
    Preset(
        "xgboost-like",
        "XGBoost-like (no privacy)",
        "Chen and Guestrin, KDD'16: exact histograms over all features, Newton updates, no noise; a reference only",
        {
            **_HISTOGRAMS, **_ALL, "split_candidates": "iterative_hessian", "candidate_rounds": 7,
            "weight_update": "newton", "n_candidates": 64, "leaf_clip": 10.0,
        },
        private=False,
    ),
    Preset(
        "s-gbdt",
        "S-GBDT",
        "Kirschte, Peinemann et al., arXiv 2309.12041v1, algorithms 7 to 9, with an exact account of its samples; the "
        "parameters that served best on Adult in a search like the paper's",
        _S_GBDT_MODEL,
        accountant="gdp",
        section={"gradient_clip": 1.0, "support_share": 0.04, "subsampling_ratio": 0.1, "extra_rounds": 75},
    ),
    Preset(
        "s-gbdt-samples",
        "S-GBDT without its filter",
        "Kirschte, Peinemann et al., arXiv 2309.12041v1, the ablation without an individual filter: each round a "
        "sample of all records, counted by privacy loss distributions; other parameters as of S-GBDT here",
        _S_GBDT_MODEL,
        accountant="gdp",
        section={"gradient_clip": 1.0, "support_share": 0.04, "subsampling_ratio": 0.1, "individual_filter": False},
    ),
    Preset(
        "s-gbdt-linear",
        "S-GBDT with a linear start",
        "S-GBDT after a linear model of the numeric features, an extra of this software (docs/s-gbdt.md); the "
        "parameters that served best on Abalone at epsilon 0.17",
        {**_S_GBDT_MODEL, "n_trees": 20, "max_depth": 3, "learning_rate": 0.1, "leaf_ridge": 200.0},
        accountant="gdp",
        section={
            "gradient_clip": 0.25, "support_share": 0.01, "subsampling_ratio": 1.0, "initial_score": "linear",
            "initial_score_share": 0.9,
        },
    ),
    Preset(
        "dp-xgboost",
        "DP-XGBoost",
        f"{_DP_XGBOOST}, with its leaks closed; its shares of epsilon and parameters",
        _DP_XGBOOST_MODEL,
        accountant="pure",
        section={
            "subsampling_ratio": 0.1, "sketch_share": 1 / 3, "split_share": 1 / 3, "gradient": "filter",
            "count_weight": 1.0, "min_child_weight": 50.0,
        },
    ),
    Preset(
        "dp-boost",
        "DPBoost, as it can be federated",
        f"Li et al., AAAI'20, as in {_DP_XGBOOST}: gradient filtering, half of epsilon for splits by the exponential "
        "mechanism and half for leaves. Noise is on sums, not on finished leaf values, so geometric leaf "
        "clipping bounds noisy values and lowers no noise; every tree sees all records",
        _DP_XGBOOST_MODEL,
        accountant="pure",
        section={
            "sketch_rounds": 0, "sketch_share": 0.0, "split_share": 0.5, "gradient": "filter",
            "geometric_leaf_clip": True,
        },
    ),
    Preset(
        "adassp",
        "Boosted AdaSSP",
        "Rho et al., 2022, Algorithm 2; the number of rounds and the shares are ours",
        {"algorithm": "adassp"},
        accountant="gdp",
    ),
    Preset(
        "hedgerow",
        "Hedgerow",
        "the default of this software; docs/defaults.md has the rule and the evidence",
        {},
        accountant="gdp",
    ),
)  # fmt: skip
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _LIST}


def find_preset(name: str) -> Preset:
    """Return the preset of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in PRESETS:
        raise UsageError("unknown-name", code="unknown-preset", kind="preset", name=name, known=", ".join(PRESETS))
    return PRESETS[name]


def build_model_section(preset: Preset, n_features: int) -> dict[str, Any]:
    """Return the [model] section of a preset for a plan of `n_features` features."""
    own = {"n_trees": preset.trees_per_feature * n_features} if preset.trees_per_feature else {}
    return {**preset.model, **own}


def apply_preset(preset: Preset, plan: Plan) -> Plan:
    """Return a plan with a preset's [model] and accountant.

    Epsilon becomes infinite for a reference without privacy.

    Raises:
        PlanError: when they do not fit the plan.
    """
    table = plan.to_dict()
    kept = {name: getattr(plan.model, name) for name in ("structure_seed", "interaction_constraints")}
    table["model"] = {**build_model_section(preset, len(plan.features)), **kept}
    table["privacy"] = {**table["privacy"], "accountant": preset.accountant, **preset.privacy}
    for section in sections():
        # Options of the algorithm that the preset replaces.
        table.pop(section, None)
    if preset.section:
        table[preset.section_name] = dict(preset.section)
    if not preset.private:
        table["privacy"]["epsilon"] = math.inf
    made = Plan.from_dict(table)
    if preset.accountant != "gdp":
        return made
    # The plan says it, so that no party's installation decides how noise is counted.
    exact = rules_by_method()[made.model.algorithm].choose_accountant(made)
    return replace(made, privacy=replace(made.privacy, accountant=exact))
