# SPDX-License-Identifier: Apache-2.0
"""The kinds of cells that a survey counts; by themselves, for commands that read cells load no compiled code for it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

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

_MAX_TEXTS = 1_000
_OTHERWISE = re.compile(
    r"[^\w\s]{0,2}\s?([A-Z]{3}\s)?[0-9][0-9.,'\u2019 \u00a0\u2009\u202f]*\s?[^\W\d_]{0,4}[^\w\s]{0,3}[^\W\d_]{0,3}|"
    r"[0-9]{1,4}([./-])[0-9]{1,2}\2[0-9]{2,4}.*"
)


def number_like(texts: Iterable[str]) -> bool:
    """Whether most of many texts look like numbers or dates in another writing: 70 kg, 12 %, 1,045.50, 13/05/2020."""
    found = [_OTHERWISE.fullmatch(text) is not None for text in itertools.islice(texts, _MAX_TEXTS)]
    return len(found) > MAX_FOUND_CLASSES and 2 * sum(found) > len(found)
