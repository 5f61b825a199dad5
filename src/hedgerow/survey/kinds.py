# SPDX-License-Identifier: Apache-2.0
"""The kinds of cells that a survey counts; by themselves, for commands that read cells load no compiled code for it."""

from __future__ import annotations

NUMBER, DATE, TRUTH, TEXT, ABSENT = range(5)
"""What a cell can be: a number, a date or moment, true or false, another text, or none of these, which is missing."""
N_KINDS = 5
USUAL_CLASSES = (
    ("0", "1"), ("1", "2"), ("-1", "1"), ("false", "true"), ("no", "yes"), ("No", "Yes"), ("NO", "YES"), ("n", "y"),
    ("N", "Y"), ("f", "t"), ("F", "T"), ("F", "M"), ("negative", "positive"), ("Negative", "Positive"), ("neg", "pos"),
    ("absent", "present"), ("case", "control"), ("alive", "dead"), ("bad", "good"),
)  # fmt: skip
"""Pairs of classes that labels commonly have, each pair sorted as texts are. A public list: it follows from no rows."""
MAX_FOUND_CLASSES = 20
"""A label with more values than this is a quantity."""
