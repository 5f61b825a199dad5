"""Every sentence that a report may have about a run, with its condition and an example, for an editor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hedgerow.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteGaussianSumEvent,
    DiscreteLaplaceEvent,
    Event,
    FilteredGaussianEvent,
    LocalGaussianEvent,
    SampledGaussianEvent,
    SelectionEvent,
    UnnoisedEvent,
)
from hedgerow.privacy.ledger import AT_ONE_SITE, RECALIBRATION, Ledger, Release
from hedgerow.privacy.report import PrivacyContext, PrivacyReport, build_report
from hedgerow.privacy.statement import (
    FILES,
    FLOWER,
    KINDS,
    NETWORK,
    NVFLARE,
    PROCESS,
    PROCESSES,
    UNRECORDED,
    make_statement,
)
from hedgerow.protocol.queries import NoiseCohort
from hedgerow.secagg.guarantees import default_wishes, derive
from hedgerow.secagg.masks import MIN_COLLUDERS

N_ROUNDS, SIGMA, SQUARED = 40, 8_000, 1_000_000
CONTEXT = PrivacyContext(delta=1e-6, epsilon_requested=8.0)


def release(at: int, event: Event, *, sigma: float = SIGMA, sensitivity: float = 1_000.0, kind: str = "LeafSums",
            subject: str = "", cohort: NoiseCohort | None = None) -> Release:  # fmt: skip
    """One release of a made-up run."""
    return Release(f"{at}/{kind}/{subject or 'all'}", at, kind, event, 32, sensitivity, sigma, cohort)


def form_cohort(n_sites: int, n_groups: int = 0) -> NoiseCohort:
    """The cohort that a coordinator forms of so many sites, or of the largest of their groups."""
    least, largest = n_sites // max(1, n_groups), -(-n_sites // max(1, n_groups))
    wishes = default_wishes(*{least, largest}, least_colluders=MIN_COLLUDERS)
    found = [derive(size, wishes) for size in (least, largest)]
    return NoiseCohort(largest, wishes.n_colluders, min(each.honest_group for each in found))


def noise_of_server(at: int, **more: str) -> Release:
    """Noise of the coordinator."""
    return release(at, DiscreteGaussianEvent.from_integers(SIGMA, SQUARED, 32), **more)  # type: ignore[arg-type]


def noise_of_sites(at: int, cohort: NoiseCohort | None, n_shares: int = 0, **more: str) -> Release:
    """Noise of the sites."""
    shares = cohort.n_shares if cohort is not None else n_shares
    event = DiscreteGaussianSumEvent.from_shares(SIGMA, shares, SQUARED, 32)
    return release(at, event, sigma=SIGMA * math.sqrt(shares), cohort=cohort, **more)  # type: ignore[arg-type]


def make_report(releases: Sequence[Release], **context: object) -> PrivacyReport:
    """The report of a made-up run."""
    return build_report(Ledger(tuple(releases)), replace(CONTEXT, **context))  # type: ignore[arg-type]


def make_runs() -> dict[str, PrivacyReport]:
    """Runs of different kinds, which have every sentence between them."""
    server = [noise_of_server(at) for at in range(N_ROUNDS)]
    sites = [noise_of_sites(at, form_cohort(9, 3)) for at in range(N_ROUNDS)]
    whole = [noise_of_sites(at, form_cohort(13)) for at in range(N_ROUNDS)]
    local = LocalGaussianEvent.from_integers(SIGMA, SQUARED, 32)
    multiplier = SIGMA / 1_000 * (1 - 1e-12)
    sample = SampledGaussianEvent(multiplier, 0.2, SIGMA, 1, 32)
    filtered = FilteredGaussianEvent(multiplier, 0.2, SIGMA, 1, 32, order=8, budget=0.1)
    laplace = DiscreteLaplaceEvent(0.01)
    after = {"kind": "ScoreHistogram"}
    alone = noise_of_server(N_ROUNDS, kind="ScoreHistogram", subject=f"{AT_ONE_SITE}, scores")
    level = noise_of_server(N_ROUNDS + 1, kind="RecalibrationSums", subject=RECALIBRATION)
    figures = noise_of_server(N_ROUNDS, kind="SiteSums")
    return {
        "noise of the coordinator, over a network": make_report(server).made(NETWORK, 5),
        "groups whose sites voted, over a network": make_report(
            [*server, noise_of_server(N_ROUNDS, kind="SiteVotes")], n_groups=3,
            tallies=((9, 9, 0), (9, 9, 7)), vote_power=0.9,
        ).made(NETWORK, 9),
        "noise of the sites with groups, over a network": make_report(
            sites, noise_mode="distributed", n_groups=3
        ).made(NETWORK, 9, 8),
        "S-GBDT, one process": make_report(
            [release(at, sample) for at in range(N_ROUNDS)], accountant="rdp"
        ).made(PROCESS, 1),
        "S-GBDT with a filter, by Flower": make_report(
            [release(at, filtered) for at in range(N_ROUNDS)], accountant="rdp"
        ).made(FLOWER, 4),
        "noise of the sites, by files": make_report(whole, noise_mode="distributed").made(FILES, 13),
        "noise of the sites, one process": make_report(
            whole, noise_mode="distributed", unit="patient_id", max_rows_per_unit=2, sums_in_clear=True
        ).made(PROCESS, 3),
        "noise of the sites, one user's processes": make_report(whole, noise_mode="distributed").made(PROCESSES, 13),
        "pure noise and choices, by NVFlare": make_report(
            [release(at, laplace, sigma=200.0, sensitivity=2.0) for at in range(3)]
            + [release(3, SelectionEvent(0.5), sigma=2.0, sensitivity=1.0, kind="Choice")],
            accountant="pure",
        ).made(NVFLARE, 4),
        "noise of each record": make_report(
            [release(at, local) for at in range(4)], noise_mode="local", unit="patient_id"
        ).made(NETWORK, 4),
        "noise of each record, of rows": make_report([release(0, local)], noise_mode="local").made(PROCESS, 4),
        "not recorded, older shares": make_report(
            [noise_of_sites(0, None, 4), noise_of_sites(1, form_cohort(5))], noise_mode="distributed"
        ),
        "a survey before it": make_report(server, n_prepared=3).made(NETWORK, 3),
        "without noise": make_report([release(0, UnnoisedEvent(), sigma=0.0)]),
        "almost without noise": make_report(
            [release(0, DiscreteGaussianEvent.from_integers(1_000, 10**8, 32), sigma=1_000, sensitivity=10_000.0)]
        ),
        "evaluated elsewhere": make_report(
            [*server, noise_of_sites(N_ROUNDS, form_cohort(5), **after)], evaluated_in=(PROCESS,)
        ).made(NETWORK, 5),
        "evaluated by fewer sites": make_report(
            [*whole, noise_of_sites(N_ROUNDS, form_cohort(5), **after)], noise_mode="distributed",
            evaluated_in=(NETWORK,),
        ).made(NETWORK, 13),
        "evaluated in several places": make_report(
            [*server, noise_of_sites(N_ROUNDS, form_cohort(5), **after)], evaluated_in=(PROCESS, UNRECORDED)
        ).made(NETWORK, 5),
        "evaluated by site": make_report([*server, figures], evaluated_in=(NETWORK,)).made(NETWORK, 5),
        "evaluated by site in one process": make_report([*server, figures], evaluated_in=(PROCESS,)).made(PROCESS, 5),
        "recalibrated and evaluated by one site": make_report([*server, alone, level]).made(NETWORK, 5),
        "a method of somebody else": make_report(server, authors=("the method lumberjack",)).made(PROCESS, 1),
    }  # fmt: skip


def main(argv: Sequence[str] = ()) -> int:
    """Print every sentence of a statement with its condition and an example."""
    runs = make_runs()
    for kind in KINDS:
        print(f"{kind.name} ({kind.topic.value}, {kind.depth.name.lower()})")
        print(f"  when     {kind.condition or 'always'}")
        shown = set[str]()
        for name, report in runs.items():
            for each in make_statement(report, kind.topic).sentences:
                if each.name == kind.name and each.text not in shown and len(shown) < 3:
                    shown.add(each.text)
                    print(f"  example  {each.text}\n           ({name})")
        print()
    return 0
