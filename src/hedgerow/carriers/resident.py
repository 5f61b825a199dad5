# SPDX-License-Identifier: Apache-2.0
"""A site's node that stays: ``hedgerow resident-node``, a process of its own behind a socket.

It answers as a node that lives for one request (`carriers.site`), with the same files on its disk after each answer. It
rebuilds nothing in between: a node of one request reads all releases of its run again for each message.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hedgerow.app.node import note_leaving, open_node_files
from hedgerow.app.output import begin_log, note
from hedgerow.carriers import read_site_file
from hedgerow.carriers.handing import NodeSocket, answer_handed_on
from hedgerow.carriers.site import CarriedNode, build_node, check_site
from hedgerow.client.node import warm_up
from hedgerow.transport.identities import read_private


class ResidentNode:
    """The node of a site's file, built again for the next request as soon as a file that its owner wrote changes."""

    def __init__(self) -> None:
        self._node: CarriedNode | None = None
        self._basis: object = None

    def answer(self, path: Path, request: bytes) -> bytes:
        """Answer one request for the site of this file, as `carriers.site.answer_request`."""
        options = read_site_file(path)
        named = (options.identity, options.roster, options.policy, options.plan, *options.models)
        # Before the files are read: what is written meanwhile counts from the next request.
        basis = options, [_stamp(Path(file)) for file in named if file]
        if self._node is None or basis != self._basis:
            self.close()
            self._node, self._basis = build_node(options, stays=True), basis
        return self._node.answer(request)

    def close(self) -> None:
        """Close the node's files."""
        if self._node is not None:
            self._node.close()
            self._node = None


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def serve_resident(path: Path, socket: Path, log_format: str, *, leaves: bool) -> None:
    """Answer requests of a carrier's app over a socket, until interrupted.

    Args:
        path: the site's file.
        socket: where the app's user may knock.
        leaves: leave the run of the state first.
    """
    options = read_site_file(path)
    name = read_private(Path(options.identity)).public.name
    begin_log(name, log_format)
    if leaves:
        # Leave the run first, so that the check reads the tables of the next run.
        with open_node_files(options, name) as (store, book, _):
            note_leaving(store, book, name)
    check_site(options)
    warm_up(None, options.threads or 1)
    node, listener = ResidentNode(), NodeSocket(socket)
    try:
        note(f"Listening at {socket}.")
        while True:
            listener.take(partial(answer_handed_on, lambda: path, answer=node.answer))
    finally:
        listener.close()
        node.close()
