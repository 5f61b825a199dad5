"""A party without a certificate of the roster, or with a monitor's: it holds as many connections as it may.

    strange_clients.py HOST:PORT COUNT idle|half|greeting|monitor [FOLDER]

It opens connections, replaces those that are ended, one at a time, and goes on until its stdin is closed or nobody has
listened for a while. `idle` says nothing, `half` a part of a TLS greeting, `greeting` a whole one and nothing more;
`monitor` shakes hands with the certificate of FOLDER/watch.private.json, speaks HTTP/2, and asks for nothing.
"""

from __future__ import annotations

import resource
import select
import socket
import ssl
import sys
import tempfile
import threading
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PER_TURN = 50


def greeting() -> bytes:
    """A ClientHello as a client would send it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(coming, going).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return going.read()


def monitors_context(folder: Path) -> ssl.SSLContext:
    """Speaks TLS as the monitor `watch`."""
    from hedgerow.transport.identities import read_private

    identity = read_private(folder / "watch.private.json")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile() as file:
        file.write(identity.tls_key + identity.public.certificate_pem)
        file.flush()
        context.load_cert_chain(file.name)
    return context


class Knocker:
    """Keeps `count` connections open, or as many as the system and the other side let it."""

    def __init__(self, address: str, count: int, manner: str, folder: str = ".") -> None:
        host, port = address.split(":")
        self._where, self._manner = (host, int(port)), manner
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._count = count if hard == resource.RLIM_INFINITY else min(count, hard - 64)
        self._words = {"half": greeting()[:100], "greeting": greeting()}.get(manner, b"")
        self._context = monitors_context(Path(folder)) if manner == "monitor" else None
        self._open: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self.n_opened = 0

    def turn(self) -> bool:
        """Open some, and drop those that were ended; False when nobody listens."""
        for number, _ in self._poll.poll(0):
            self._poll.unregister(number)
            self._open.pop(number).close()
        for _ in range(min(_PER_TURN, self._count - len(self._open))):
            try:
                connection = socket.create_connection(self._where, timeout=5)
                if self._context is not None:
                    connection = self._context.wrap_socket(connection)
                connection.sendall(PREFACE if self._context is not None else self._words)
            except ConnectionRefusedError:
                return False
            except OSError:
                continue
            self.n_opened += 1
            connection.setblocking(False)
            self._open[connection.fileno()] = connection
            # Answers are of no interest, only the end.
            self._poll.register(connection, select.POLLRDHUP)
        return True


def main(address: str, count: str, manner: str, *folder: str) -> None:
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    knocker = Knocker(address, int(count), manner, *folder)
    n_alone, was_full = 0, False
    while not stopped.wait(0.02) and n_alone < 45_000:
        n_alone = 0 if knocker.turn() else n_alone + 1
        if not was_full and knocker.n_opened >= knocker._count:
            was_full = True
            print("there", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
