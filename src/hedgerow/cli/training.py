"""What `train` and `demo` share: reading sites' files, training with progress, and the lines about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hedgerow.cli.node_inputs import left_out_text
from hedgerow.cli.output import note, warn
from hedgerow.cli.progress import TrainingProgress, status
from hedgerow.client.sampling import seeded_samplings
from hedgerow.data.site_data import SiteData, bounded_sites, read_site_rows
from hedgerow.data.units import ContributionReport
from hedgerow.local.training import train
from hedgerow.models.model import Model
from hedgerow.plan.plan import Plan
from hedgerow.privacy.noise import NoiseSource
from hedgerow.threads import available_threads, use_threads
from hedgerow.trees.binning import build_grid


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites' rows, and which rows each of them left out: counts for the sites' own operators only."""

    data: Mapping[str, SiteData]
    contributions: Mapping[str, ContributionReport]

    @property
    def n_records(self) -> int:
        return sum(site.n_records for site in self.data.values())


def read_sites(files: Mapping[str, Path], plan: Plan, *, quiet: bool, strict: bool = False) -> Sites:
    """Read and bin every site's file; rows of one unit are bounded at each site and over all of them.

    What was left out is said on stderr, for the operator's eyes.

    Args:
        strict: refuse a row that does not fit, and a table without rows.

    Raises:
        DataError: a file cannot be read or lacks a column; if strict, also for a row.
    """
    grid = build_grid(plan)
    rows = {}
    for name, path in files.items():
        with status(f"Reading {path.name}", quiet=quiet):
            rows[name] = read_site_rows(path, plan, grid, strict=strict)
    bounded = bounded_sites(rows, plan)
    data = {name: own for name, (own, _) in bounded.items()}
    contributions = {name: report for name, (_, report) in bounded.items()}
    for name, report in contributions.items():
        if report.unfit or report.n_dropped or not data[name].n_records:
            note(f"Private, for the site {name} only: {left_out_text(report)}")
    if not any(own.n_records for own in data.values()):
        warn(
            "No row of any site fitted, so the model can learn nothing. Compare the plan with the tables: names, "
            "bounds, and the classes of the label, in which upper and lower case differ."
        )
    return Sites(data, contributions)


def train_with_progress(
    plan: Plan,
    sites: Sites,
    noise: NoiseSource,
    *,
    n_threads: int | None,
    quiet: bool,
    seed: int | None = None,
    title: str = "Training",
) -> Model:
    """Train over the sites with a progress bar; with a seed, samples come from it too, where any are drawn."""
    sizes = {name: sites.data[name].n_records for name in sorted(sites.data)}
    sampling = None if seed is None else seeded_samplings(seed, sizes)
    with (
        use_threads(n_threads or available_threads()) as allowed,
        TrainingProgress(plan, len(sites.data), quiet=quiet, title=title) as progress,
    ):
        return train(plan, sites.data, noise=noise, n_threads=allowed, progress=progress, sampling=sampling)
