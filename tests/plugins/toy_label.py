"""A type of label from outside the package: a share of a whole, with the squared loss under its own name."""

from __future__ import annotations

from dataclasses import replace

from hedgerow.losses import squared
from hedgerow.losses.kinds import means, regression_scores
from hedgerow.losses.labels import Numbers, negative
from hedgerow.plan.fields import refuse
from hedgerow.plan.plan import Label
from hedgerow.plan.registry import LabelColumn


class Share(Numbers):
    """A share of a whole; rows with less than nothing are left out."""

    type = "share"
    hint = '"share" with max = 1'

    def check(self, label: Label) -> None:
        if label.classes or label.min not in (None, 0.0) or label.max != 1:
            raise refuse("label.max", label.max, "1, and no classes, for a share")

    def columns(self, label: Label) -> tuple[LabelColumn, ...]:
        return (LabelColumn(label.name, bounds=label.bounds, least=0.0, outside=negative),)


LABEL = Share()
KIND = replace(squared.KIND, label=LABEL, averaging=means(LABEL, regression_scores))
