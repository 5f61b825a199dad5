"""What the coordinator works out while the sites open a sum, so that they need not wait for it when they have.

Nobody sees any of it before the release that it is for; it is used once, or forgotten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from hedgerow.errors import HedgerowError
from hedgerow.plan.plan import Plan
from hedgerow.privacy.ledger import Ledger, release_to_json
from hedgerow.privacy.noise import NoiseSource
from hedgerow.privacy.report import PrivacyReport
from hedgerow.protocol.queries import IntVector, NoiseCohort, PureQuery, Query
from hedgerow.server.coordinator import checked_report, entry_of


class DrawnAhead:
    """A source of noise that may have drawn the next vector already; otherwise the source that it is made from.

    See `privacy.noise.NoiseSource`, which it is.
    """

    def __init__(self, noise: NoiseSource) -> None:
        self._noise = noise
        self._drawn: tuple[tuple[int, int, str], IntVector] | None = None

    @property
    def seeded(self) -> bool:
        """See `NoiseSource.seeded`."""
        return self._noise.seeded

    @property
    def approximate(self) -> bool:
        """See `NoiseSource.approximate`."""
        return self._noise.approximate

    def draw(self, sigma: int, length: int, purpose: str) -> None:
        """Draw what `sample` will be asked for with the same arguments, unless that was done."""
        wanted = sigma, length, purpose
        if self._drawn is None or self._drawn[0] != wanted:
            self._drawn = wanted, self._noise.sample(*wanted)

    def sample(self, sigma: int, length: int, purpose: str) -> IntVector:
        """See `NoiseSource.sample`; what was drawn ahead is given out once, and only for what it was drawn for."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None and drawn[0] == (sigma, length, purpose):
            return drawn[1]
        return self._noise.sample(sigma, length, purpose)

    def laplace(self, scale: int, length: int, purpose: str) -> IntVector:
        """See `NoiseSource.laplace`."""
        return self._noise.laplace(scale, length, purpose)

    def select(self, scores: Sequence[IntVector], scale: int, purpose: str) -> IntVector:
        """See `NoiseSource.select`."""
        return self._noise.select(scores, scale, purpose)


class Ahead:
    """The next release's noise, and the report that a run ends with.

    Args: plan: the run's; noise: where its noise comes from.
    """

    def __init__(self, plan: Plan, noise: NoiseSource) -> None:
        self._plan, self.noise = plan, DrawnAhead(noise)
        self._report: tuple[Ledger, PrivacyReport] | None = None

    def prepare(self, query: Query, ledger: Ledger, cohort: NoiseCohort | None, *, is_last: bool) -> None:
        """Draw the noise for a query's release, word its line of the ledger, and account for the run if it is the last.

        Args: ledger: of all releases before it; cohort: the sites whose noise is in the sum, None for the others;
            is_last: whether the plan asks for no further release.
        """
        is_local = self._plan.privacy.noise == "local"
        # What is wrong with a release is said when it is made, and by the part that makes it.
        with contextlib.suppress(HedgerowError):
            entry, noise = entry_of(query, cohort, self.noise, is_local=is_local)
            release_to_json(entry)
            if noise.central_sigma and not isinstance(query, PureQuery):
                self.noise.draw(noise.central_sigma, query.length, entry.purpose)
            if is_last:
                longer = ledger.append(entry)
                self._report = longer, checked_report(self._plan, longer, self.noise)

    def report_on(self, ledger: Ledger) -> PrivacyReport:
        """`checked_report`, at once if it was prepared for this very ledger; raises PrivacyError as that does."""
        if self._report is not None and self._report[0] == ledger:
            return self._report[1]
        return checked_report(self._plan, ledger, self.noise)
