"""Hedgerow on Flower: what the app that Flower carries calls in the Hedgerow that is installed. See docs/flower.md.

One version is on every machine: app, coordinator and node compare it before anything else.
"""

from __future__ import annotations

from hedgerow import __version__
from hedgerow.errors import RemoteProtocolError


def require_version(version: object, whose: str) -> None:
    """Raises RemoteProtocolError `flower-version` unless it is the installed one."""
    if version != __version__:
        said = str(version)[:32] if version else "no version"
        raise RemoteProtocolError(
            f"{whose} is of Hedgerow {said}; installed here is {__version__}.",
            cause="The coordinator and this machine were not upgraded together.",
            remedy="Install the same version on every machine, and start the run from that version's repository.",
            code="flower-version",
        )
