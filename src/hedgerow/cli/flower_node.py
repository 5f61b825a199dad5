"""``hedgerow flower-node``: a site's node for a SuperNode of the same machine, kept apart from it by a socket."""

from __future__ import annotations

import argparse
from pathlib import Path

from hedgerow.cli.output import note
from hedgerow.client.warm_up import warm_up
from hedgerow.errors import HedgerowError
from hedgerow.flower.files import read_site_file
from hedgerow.flower.site import answer, check, leave_run
from hedgerow.flower.version import require_version
from hedgerow.transport.flower_socket import NodeSocket


def run(arguments: argparse.Namespace) -> None:
    """Answer what a SuperNode hands over, until interrupted."""
    path = Path(arguments.site)
    file = read_site_file(path)
    check(path)
    if arguments.leave:
        leave_run(path)
    warm_up(None, file.threads or 1)

    def reply(version: str, request: bytes) -> bytes:
        try:
            require_version(version, "The coordinator")
            return answer(path, request)
        except HedgerowError as fault:
            note(f"{fault} ({fault.code})")
            raise

    listener = NodeSocket(Path(arguments.socket))
    try:
        note(f"Listening at {arguments.socket}.")
        while True:
            listener.take(reply)
    finally:
        listener.close()
