"""Losses from outside the package: Huber's under another name, and the same with scores that mean something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hedgerow.losses.kinds import IdentityLink, LossKind
from hedgerow.losses.named import Huber
from hedgerow.methods.api import add_named_loss
from hedgerow.plan.plan import Label

__version__ = "0.3"


class OwnLink(IdentityLink):
    """A link that Hedgerow does not have."""

    name = "own"


@dataclass(frozen=True, kw_only=True)
class Lent(Huber):
    """Huber's, whose scores mean what those of usual numbers do."""

    name: ClassVar[str] = "lent"
    version: ClassVar[str] = __version__


@dataclass(frozen=True, kw_only=True)
class Apart(Huber):
    """The same, with a link of its own."""

    name: ClassVar[str] = "apart"
    version: ClassVar[str] = __version__

    def kind(self, label: Label) -> LossKind:
        return replace(super().kind(label), link=OwnLink())


add_named_loss(Lent)
add_named_loss(Apart)
