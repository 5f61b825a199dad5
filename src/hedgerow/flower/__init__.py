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
        raise RemoteProtocolError("flower-version", whose=whose, said=said, installed=__version__)
