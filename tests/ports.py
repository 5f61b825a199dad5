"""A port for processes that begin to listen later, end, and begin again."""

from __future__ import annotations

import socket


def hold_port() -> tuple[socket.socket, str]:
    """An address of this machine with a port, and what holds the port until it is closed.

    Who may share an address, as every server here does, can listen there meanwhile. The system gives the port to nobody
    else who asks for any port, and to no connection, not even while nobody listens.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder, f"127.0.0.1:{holder.getsockname()[1]}"
