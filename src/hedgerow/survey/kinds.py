# SPDX-License-Identifier: Apache-2.0
"""The kinds of cells that a survey counts.

They have a module of their own, so that commands that read cells load no compiled code.
"""

from __future__ import annotations

NUMBER, DATE, TRUTH, TEXT, ABSENT = range(5)
"""Kinds of cells: a number, a date or moment, true or false, another text, or none of these (missing)."""
N_KINDS = 5
USUAL_CLASSES = (
    ("0", "1"), ("1", "2"), ("-1", "1"), ("false", "true"), ("no", "yes"), ("No", "Yes"), ("NO", "YES"), ("n", "y"),
    ("N", "Y"), ("f", "t"), ("F", "T"), ("F", "M"), ("negative", "positive"), ("Negative", "Positive"), ("neg", "pos"),
    ("absent", "present"), ("case", "control"), ("alive", "dead"), ("bad", "good"),
)  # fmt: skip
"""Pairs of classes that labels commonly have, each pair sorted as texts are. A public list: it follows from no rows."""
MAX_FOUND_CLASSES = 20
"""A label with more values than this is a quantity."""
