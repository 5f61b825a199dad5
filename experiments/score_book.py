"""Scores of an experiment, kept on the disk one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.cells import code_digest


class ScoreBook:
    """Scores that are written down one by one, so that an experiment which was stopped can go on.

    A score's key is a digest of everything that decides it: the run's plan, its rows, its seed, and the code.

    Args:
        path: a CSV file of key and score, or None to keep scores for this process only.
        modules: of this folder, the experiment's own files that decide scores, besides the library.
    """

    def __init__(self, path: Path | None = None, modules: Sequence[str] = ()) -> None:
        self._path = path
        own = (Path(__file__).with_name(name).read_bytes() for name in modules)
        self._code = code_digest() + "".join(hashlib.sha256(content).hexdigest()[:12] for content in own)
        self._scores: dict[str, float] = {}
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            # A run that was interrupted while writing leaves a line without its end.
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                path.write_text(whole, encoding="utf-8")
            lines = [line.split(",") for line in whole.splitlines()]
            self._scores = {digest: float(score) for digest, score in lines}

    def score(self, key: object, run: Callable[[], float]) -> float:
        """What was written down for this key, or what `run` gives; `repr(key)` tells runs apart."""
        digest = hashlib.sha256(f"{self._code} {key!r}".encode()).hexdigest()[:32]
        if digest not in self._scores:
            self._scores[digest] = run()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(f"{digest},{self._scores[digest]!r}\n")
        return self._scores[digest]
