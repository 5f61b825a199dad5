# SPDX-License-Identifier: Apache-2.0
"""What a plan costs and promises, in words, before anyone runs it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hedgerow.app.output import megabytes, number, print_facts
from hedgerow.codec import format_spoken
from hedgerow.local.forecast import (
    MIN_GROUP,
    OFFERED_GROUPS,
    Forecast,
    expect_singles,
    propose_groups,
    share_noise_factor,
)
from hedgerow.methods.registry import find_method, resolve
from hedgerow.methods.tasks import TrainingTask, find_visibility
from hedgerow.methods.votes import find_power
from hedgerow.plan.plan import Plan, who_sees
from hedgerow.privacy.accountants import epsilon_of_mu, mu_of
from hedgerow.privacy.guesses import bound_guesses
from hedgerow.privacy.ledger import read_prepared_events
from hedgerow.privacy.outlook import is_measured, outlook_facts, outlook_of
from hedgerow.privacy.public import PublicInputs
from hedgerow.privacy.report import PrivacyContext, list_warnings
from hedgerow.privacy.rounding import format_cost, format_up
from hedgerow.privacy.statement import describe_guesses
from hedgerow.protocol.groups import median_noise_factor as middle_noise
from hedgerow.protocol.votes import MIN_POWER
from hedgerow.rounds import choose_wishes
from hedgerow.secagg.guarantees import MIN_COHORT
from hedgerow.training.settings import Settings
from hedgerow.trees.ensemble import Ensemble

_IN_ONE_PROCESS = (
    "in one process",
    "all this is said of sites that have a node each. Where one process reads all tables (`hedgerow train --site`, a "
    "fit in Python), whoever runs it sees every row, and nothing is promised against them",
)
_CURVE = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Times a plan's epsilon, where its outlook is shown."""


def show_cost(plan: Plan, expected: Forecast, n_sites: int) -> None:
    """Print a plan's cost for a person."""
    count, n_categorical = len(plan.features), sum(feature.is_categorical for feature in plan.features)
    features = f"{count} feature{'' if count == 1 else 's'}" + (f" ({n_categorical} categorical)" * bool(n_categorical))
    print(f"Plan {plan.name!r}: {features}, label {plan.label.name!r} ({plan.label.type})")
    print(f"digest {plan.digest}")
    print(f"fingerprint {format_spoken(bytes.fromhex(plan.digest))}\n")
    print("Privacy")
    print_facts(privacy_facts(plan, expected))
    print("\nNoise")
    print_facts([*describe_visibility(plan, expected), _IN_ONE_PROCESS, *_list_noise_facts(plan, n_sites)])
    if facts := outlook(plan, n_sites):
        print("\nExpected accuracy")
        print_facts(facts)
    print('\nModel, with every "auto" decided from public numbers (docs/defaults.md)')
    print_facts([*model_facts(plan, expected.settings), *([("known", "; ".join(plan.known))] if plan.known else [])])
    kinds = ", ".join(f"{count} x {kind} of {length:,} numbers" for kind, count, length in expected.queries)
    print("\nEach site")
    print_facts(
        [
            ("rounds", f"{expected.n_rounds} ({kinds})"),
            ("sends", f"{expected.numbers_per_node:,} numbers of {expected.bits_per_number} bits, "
             f"{megabytes(expected.bytes_per_node)} over the whole run"),
        ]
    )  # fmt: skip


def privacy_facts(plan: Plan, expected: Forecast) -> list[tuple[str, str]]:
    """Describe a plan's promise, its spending, and weaknesses of both."""
    privacy = plan.privacy
    if math.isinf(privacy.epsilon):
        return [("epsilon", "infinite: this plan adds no noise and promises nothing")]
    unit = "each record"
    if privacy.unit != "record":
        unit = f"each {privacy.unit}, {privacy.max_rows_per_unit} row(s) at each of {privacy.sites_per_unit} site(s)"
    whom = {"local": "everyone but its own node", "server": "everyone but the coordinator"}.get(
        privacy.noise, "everyone, unless too many sites work together with the coordinator"
    )
    whole = expected.settings.bounded_by or f"mu {number(mu_of(privacy.epsilon, privacy.delta))} in all"
    facts = [
        ("protects", f"{unit}, against {whom}"),
        ("promise", f"{format_cost(privacy.epsilon, privacy.delta)} (accountant {privacy.accountant})"),
        ("spends", describe_spending(plan, expected)),
        ("noise", f"multiplier {number(expected.settings.noise_multiplier, 6)} per {expected.settings.step} "
         f"({whole})"),
    ]  # fmt: skip
    if advice := advise_accountant(plan, expected):
        facts.append(("accountant", advice))
    events = [*read_prepared_events(plan), *TrainingTask(plan).schedule.events]
    bound = bound_guesses(events, expected.epsilon_promised, privacy.delta)
    facts.append(("guesses", describe_guesses(privacy.unit, bound, is_local=privacy.noise == "local")))
    if expected.epsilon_by_rows:
        said = ", ".join(f"{count} rows {format_up(epsilon, 3)}" for count, epsilon in expected.epsilon_by_rows.items())
        facts.append(("a person", f"with several records is promised less, by epsilon: {said}; privacy.unit mends it"))
    if (count := PublicInputs.from_plan(plan).records_of_a_line) > 1:
        facts.append(("one line", f"of a CSV may touch {count} records (privacy.line_breaks); the promise is for one"))
    said = "no part of Hedgerow: the promise is kept if what it states of its sums is right"
    facts += [("made by", f"{author}, {said}") for author in PrivacyContext.from_plan(plan).authors]
    facts += [("warning", warning) for warning in warnings(plan)]
    if plan.reads_rows:
        facts.append(("warning", "bounds were read off private data: the guarantee is void"))
    if plan.reads_quantiles:
        facts.append(("warning", "split candidates are read off private data: the guarantee is void"))
    return facts


def describe_spending(plan: Plan, expected: Forecast) -> str:
    """Describe a run's cost by the plan's accountant, and by others."""
    exact, renyi = format_up(expected.epsilon_gdp), format_up(expected.epsilon_rdp)
    if expected.epsilon_gdp < expected.epsilon_rdp:
        by_gdp = f"epsilon {exact} by exact accounting (gdp); by a second, coarser method (rdp) {renyi}"
    else:
        by_gdp = f"epsilon {exact} by Renyi accounting, a bound (gdp, rdp)"
    if plan.privacy.accountant in ("pure", "pld"):
        return f"epsilon {format_up(expected.epsilon_promised)} by {plan.privacy.accountant}; {by_gdp}"
    return by_gdp


def advise_accountant(plan: Plan, expected: Forecast) -> str:
    """Name an accountant that counts this plan more closely than its own.

    Returns "" if there is none, and for a plan without noise.
    """
    own, best = plan.privacy.accountant, find_method(plan).choose_accountant(plan)
    if math.isinf(plan.privacy.epsilon) or own in ("pure", "pld"):
        return ""
    if best != own and best == "pld":
        return (
            f'"pld" counts these samples more closely than "{own}", whose noise is for Renyi\'s bound. A plan that '
            "names it needs the extra hedgerow[pld] at every party"
        )
    if own == "rdp" and expected.epsilon_gdp < expected.epsilon_rdp:
        share = format_up(100 * (expected.epsilon_rdp / expected.epsilon_gdp - 1), 2)
        return f'"gdp" is exact; "rdp", the figure of papers, is {share} % larger here, and asks for more noise'
    return ""


def model_facts(plan: Plan, settings: Settings) -> list[tuple[str, str]]:
    """List a run's settings; "auto" marks those that a plan cannot name without changing the model."""
    facts = [("loss", plan.loss_text)] if plan.loss else []
    facts += [(name, _format_setting(plan, settings, name)) for name in settings.shown]
    if any(value.startswith("auto: ") for _, value in facts):
        why = "a plan that names one turns off what goes with it (docs/defaults.md)"
        facts.append(("auto", f"leave these to the rule: {why}"))
    return facts


def describe_trees(plan: Plan, ensemble: Ensemble, *, is_whole: bool = True) -> str:
    """Describe the trees of a run, counted as in `model_facts`.

    A model keeps a start and a calibration as trees too, and makes all of them as deep as the deepest.

    Args:
        is_whole: False for a run that ended early, which may lack any of them.
    """
    settings = resolve(plan)
    n_others = max(0, ensemble.n_trees - settings.n_trees) if is_whole and "n_trees" in settings.shown else 0
    depth = "0" if ensemble.fitted is None else str(ensemble.fitted.trees.depth)
    if is_whole and "max_depth" in settings.shown:
        depth = str(settings.show("max_depth"))
    others = f", and {n_others} for start and calibration" if n_others else ""
    return f"{ensemble.n_trees - n_others} trees of depth {depth}{others}"


def _format_setting(plan: Plan, settings: Settings, name: str) -> str:
    """Format a setting in use, after "auto" if naming it in the plan would change other settings."""
    value = getattr(settings, name)
    shown = settings.show(name)
    text = "the loss's own" if shown is None else f"{shown:g}" if isinstance(shown, float) else str(shown)
    if getattr(plan.model, name, None) != "auto" or value is None:
        return text
    named = resolve(replace(plan, model=replace(plan.model, **{name: value})))
    return text if named == settings else f"auto: {text}"


def describe_visibility(plan: Plan, expected: Forecast) -> list[tuple[str, str]]:
    """Describe who sees which totals, and how many totals may be of a single record."""
    is_unnoised = math.isinf(plan.privacy.epsilon)
    facts = [("who sees what", who_sees(find_visibility(TrainingTask(plan))))]
    singles = expect_singles(plan, expected.settings)
    if singles is not None and plan.privacy.noise != "local" and not is_unnoised:
        n_leaves = expected.settings.n_grown_trees * expected.settings.leaves_of_tree
        seen, mended = "noisy totals are of", ""
        if plan.privacy.noise == "server":
            seen = "exact totals that the coordinator sees describe"
            mended = "" if find_method(plan).is_pure else '. noise = "distributed" prevents it'
        facts.append(
            ("one record", f"about {singles[0]:,.0f} of the run's {n_leaves:,} {seen} a single record if records "
             f"spread evenly over a tree's leaves, up to {singles[1]:,.0f} if most crowd into one of them{mended}")
        )  # fmt: skip
    return facts


def _list_noise_facts(plan: Plan, n_sites: int) -> list[tuple[str, str]]:
    """Describe the cost of noise added by the sites."""
    if math.isinf(plan.privacy.epsilon) or plan.privacy.noise == "local":
        return []
    if find_method(plan).is_pure:
        return [("of the sites", "this algorithm has no noise of the sites")]
    cost, n_groups = compare_distributed_noise(plan, n_sites), plan.federation.groups
    groups = []
    if n_groups:
        times = middle_noise(n_groups)
        like = number(epsilon_of_mu(mu_of(plan.privacy.epsilon, plan.privacy.delta) / times, plan.privacy.delta), 3)
        said = f"{n_groups}: the middle of their sums has {times:.2f} times one sum's noise, as at epsilon {like}"
        grouped, alone = outlook_of(plan), outlook_of(plan.with_one_sum())
        if grouped.median is not None and alone.median is not None:
            said += f", where {grouped.median:.0%} of a model was left and not {alone.median:.0%}"
        said += f". Up to {n_groups // 2} of all sites may lie; {n_groups // 2 + 1} in different groups have the middle"
        groups = [("groups of sites", f"{said} (docs/poisoning.md)")]
    if (votes := TrainingTask(plan).schedule.votes) is not None:
        power = find_power(plan, votes, [0] * n_sites)
        told = f"one vote shows a model that is turned round with a chance of {power:g}"
        said = told if power >= MIN_POWER else "each has too few rows: votes cannot tell whether a model is spoilt"
        groups.append(("votes of sites", f"at {n_sites} sites of one size {said} (docs/poisoning.md)"))
    among = f" in {n_groups} groups" if n_groups else ""
    if plan.privacy.noise == "distributed":
        n_sites = max(n_sites, MIN_COHORT * n_groups)
        sizes = sorted({n_sites // max(1, n_groups), -(-n_sites // max(1, n_groups))})
        most = choose_wishes(plan, sizes).n_colluders
        beside = f" of any group, so of all {n_sites}, whichever" if n_groups else f" of {n_sites}"
        said = f"at most {most}{beside}; with more of them the coordinator may read what is promised to be hidden"
        groups.append(("may collude", said))
    return [
        *groups,
        ("of the sites", f"at {n_sites} sites{among} {cost['factor']:.2f} times the noise "
         f"({cost['factor_without_echo']:.2f} without the echo exchange): that of the coordinator at epsilon "
         f"{number(cost['like_server_epsilon'], 3)}. --sites N is for your number")
    ]  # fmt: skip


def groups_text(plan: Plan, n_sites: int) -> str:
    """Describe a plan's groups of sites, or those it could have, with price, liars and colluders.

    Args:
        n_sites: expected; groups are offered for more as well.
    """
    if plan.federation.groups:
        return f"{plan.federation.groups}; what they cost says `hedgerow privacy`"
    offers = []
    for n_groups, (size, _) in OFFERED_GROUPS.items():
        least = n_groups * size
        proposed = propose_groups(plan, max(n_sites, least), n_groups)
        if proposed is not None:
            most = choose_wishes(proposed, [size]).n_colluders
            offers.append(
                f"With groups = {n_groups} and min_sites = {MIN_GROUP} in [federation], for {least} sites or more, "
                f"{n_groups // 2} of all may lie and {most} collude, for about 0.01 of AUC "
                f"({middle_noise(n_groups):.2f} times one sum's noise)"
            )
    if not offers:
        return "none: one site that lies may turn the model (docs/poisoning.md)"
    return f"none: one site that lies may turn the model. {'. '.join(offers)} (docs/poisoning.md)"


def compare_distributed_noise(plan: Plan, n_sites: int) -> dict[str, Any]:
    """Compare noise of n_sites sites with the coordinator's noise, for the same promise."""
    privacy, least = plan.privacy, plan.federation.min_sites
    if plan.federation.groups:
        n_sites = max(MIN_COHORT, n_sites // plan.federation.groups)
    # A plan with noise of the coordinator would use the echo if it had noise of the sites.
    has_echo = bool(plan.federation.echo) or privacy.noise != "distributed"
    factor = share_noise_factor(n_sites, has_echo=has_echo, min_survivors=least)
    return {
        "n_sites": n_sites,
        "factor": factor,
        "factor_without_echo": share_noise_factor(n_sites, has_echo=False, min_survivors=least),
        "like_server_epsilon": epsilon_of_mu(mu_of(privacy.epsilon, privacy.delta) / factor, privacy.delta),
    }


def expect_noise_factor(plan: Plan, n_sites: int) -> float | None:
    """Return the sites' noise in units of the coordinator's; None if the sites add none."""
    return compare_distributed_noise(plan, n_sites)["factor"] if plan.privacy.noise == "distributed" else None


def outlook(plan: Plan, n_sites: int) -> list[tuple[str, str]]:
    """Describe the share of a model left by the noise, at several epsilons; nothing without noise."""
    noise_factor = expect_noise_factor(plan, n_sites)
    facts = outlook_facts(plan, noise_factor=noise_factor)
    if facts and is_measured(plan):
        left = {
            factor * plan.privacy.epsilon: outlook_of(
                plan, factor * plan.privacy.epsilon, noise_factor=noise_factor
            ).median
            for factor in _CURVE
        }
        shares = [f"{number(epsilon, 3)}: {share:.0%}" for epsilon, share in left.items() if share is not None]
        if shares:
            less = " (at a smaller epsilon it cannot be said)" * (len(shares) < len(left))
            facts.insert(2, ("by epsilon", f"{', '.join(shares)}{less}"))
    return facts


def warnings(plan: Plan) -> tuple[str, ...]:
    """List the weaknesses of a plan's promise."""
    return list_warnings(plan.privacy.epsilon, plan.privacy.delta, plan.privacy.n_records)
