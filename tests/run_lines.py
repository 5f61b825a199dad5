"""The lines that a coordinator prints of its run, with a board of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hedgerow.app.coordinator import RunLines
from hedgerow.server.coordinator import RunEvent
from hedgerow.server.status import RunBoard
from tests.builders import make_plan


class Told(RunLines):
    """Lines whose board has each event first, as `carry_out` has it."""

    def __init__(self, n_rounds: int, sites: Sequence[str], shows: Callable[[], object] = lambda: None) -> None:
        self.board = RunBoard(make_plan("binary"), sites, n_rounds, lambda: time.monotonic(), bytes(8))
        super().__init__(n_rounds, self.board, quiet=False, shows=shows)

    def __call__(self, event: RunEvent) -> None:
        self.board(event)
        super().__call__(event)
