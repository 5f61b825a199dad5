# SPDX-License-Identifier: Apache-2.0
"""Show the progress of a training in this process.

A terminal or notebook has a bar, other outputs a line now and then, and machines nothing.
"""

from __future__ import annotations

import html
import math
import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hedgerow.methods.tasks import TrainingTask
from hedgerow.plan.plan import Plan
from hedgerow.privacy.accountants import compute_account
from hedgerow.privacy.ledger import Ledger
from hedgerow.privacy.rounding import format_up
from hedgerow.protocol.queries import Query

_WIDEST = 100
"""Longer lines are hard to read, however wide the terminal."""
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_EPSILONS = 0.2
"""An accountant reads the whole ledger, so it is not asked after every release."""


class TrainingProgress:
    """Display of a run's progress, in rounds and epsilon spent; pass it to `train` as `progress`.

    Args:
        patience: seconds before anything is shown, >= 0.
    """

    def __init__(
        self, plan: Plan, n_sites: int, *, quiet: bool = False, title: str = "Training", patience: float = 0.0
    ) -> None:
        self._plan = plan
        self._sites = f"{n_sites} site{'' if n_sites == 1 else 's'}"
        self._title = title
        console = Console(stderr=True)
        self._console = Console(stderr=True, width=min(_WIDEST, console.width))
        self._quiet = quiet
        self._total = 0 if quiet else TrainingTask(plan).schedule.n_rounds
        self._done = 0
        self._spent = 0.0
        self._last_epsilon = self._last_line = -math.inf
        self._bar: Progress | None = None
        self._cell: Any = None
        self._patience = patience
        self._starts_at = math.inf

    def __enter__(self) -> TrainingProgress:
        now = time.monotonic()
        self._starts_at = now + self._patience
        self._last_line = now + self._patience - _SECONDS_BETWEEN_LINES if self._patience else now
        if not self._patience:
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        if not self._quiet and self._console.is_jupyter:
            # In a notebook show plain HTML, because rich's own bar needs widgets that may be missing.
            display = sys.modules["IPython"].display
            self._cell = display.display(display.HTML(self._html()), display_id=True)
        elif not self._quiet and self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<15}"),
                BarColumn(bar_width=None, complete_style="green", finished_style="green"),
                TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
                TextColumn("{task.fields[epsilon]}"),
                TextColumn(f"[dim]{self._sites}[/]"),
                TimeElapsedColumn(),
                console=self._console,
                expand=True,
                transient=False,
            )
            self._task = self._bar.add_task("Starting", total=self._total, epsilon=self._epsilon_text())
            self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, query: Query, ledger: Ledger) -> None:
        """Count a release, and update the progress bar, cell or line if it is due."""
        self._done += 1
        if self._quiet:
            return
        now = time.monotonic()
        is_last = self._done >= self._total
        if now < self._starts_at:
            return
        if self._bar is None and self._cell is None:
            self._start_bar()
        if now - self._last_epsilon >= _SECONDS_BETWEEN_EPSILONS or is_last:
            privacy, self._last_epsilon = self._plan.privacy, now
            if math.isfinite(privacy.epsilon):
                self._spent = compute_account(privacy.accountant, ledger.events(), privacy.delta).epsilon
        if self._cell is not None:
            if is_last or now - self._last_line >= _SECONDS_BETWEEN_EPSILONS:
                self._last_line = now
                self._cell.update(sys.modules["IPython"].display.HTML(self._html()))
        elif self._bar is not None:
            title = self._title
            self._bar.update(self._task, completed=self._done, description=title, epsilon=self._epsilon_text())
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(self._line(), file=sys.stderr, flush=True)

    def _html(self) -> str:
        return f'<progress value="{self._done}" max="{self._total}"></progress> {html.escape(self._line())}'

    def _line(self) -> str:
        return f"{self._title}: {self._done}/{self._total} rounds, {self._epsilon_text(True)}, {self._sites}"

    def _epsilon_text(self, plain: bool = False) -> str:
        total = self._plan.privacy.epsilon
        if math.isinf(total):
            return "no privacy" if plain else "[red]no privacy[/]"
        text = f"epsilon {format_up(self._spent, 3)} of {total:g}"
        return text if plain else f"[cyan]{text}[/]"
