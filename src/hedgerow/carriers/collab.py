# SPDX-License-Identifier: Apache-2.0
"""NVFlare as a carrier, by its Collab API (2.9): a coordinator in the server's job, a site's node in each client's.

A job holds nothing but the name of the coordinator's file. What a client reads stands in its own workspace, in the
folder that NVFlare leaves to the site: no job names it. The same recipe runs in NVFlare's simulator, in a POC and
in production.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from hedgerow.carriers import read_coordinator_file
from hedgerow.carriers.handing import answer_handed_on, fetch_handed_back, find_site, hand_on
from hedgerow.errors import UsageError, missing_extra
from hedgerow.transport.carrier import Fetched, Patience

try:
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.collab import CollabCallError, CollabRecipe, collab
except ImportError as error:
    raise missing_extra("nvflare", "The carrier NVFlare") from error

SITES_VARIABLE = "HEDGEROW_NVFLARE_SITES"
"""Variable with the folder of the sites' files, NAME/site.toml, in a simulation. Its user sets it; a job cannot."""
_SECONDS_TO_ANSWER = 600.0
_THREADS = 256


class CollabCarrier:
    """Carrier by calls of NVFlare's collaboration API; see `transport.carrier.Carrier`.

    Args:
        clients: `collab.clients`, inside `collab.main`.
    """

    place = "nvflare"

    def __init__(self, clients: Iterable[Any]) -> None:
        self._clients, self._numbers = list(clients), count(1)
        # A call to a client that is gone blocks its thread until the time limit.
        self._pool = ThreadPoolExecutor(_THREADS)
        self._calls: dict[str, Future[bytes]] = {}

    def nodes(self) -> Mapping[int, str]:
        """Return NVFlare's clients by number, without names: each node says which site it is."""
        return dict.fromkeys(range(len(self._clients)), "")

    def push(self, envelopes: Sequence[tuple[int, bytes]]) -> list[str | None]:
        """Start a call of each client, and return the calls' numbers."""
        numbers: list[str | None] = []
        for node, data in envelopes:
            number = str(next(self._numbers))
            call = self._clients[node](timeout=_SECONDS_TO_ANSWER).answer
            # NVFlare finds the job of a call in the context of the calling thread.
            context = contextvars.copy_context()
            self._calls[number] = self._pool.submit(context.run, call, request=hand_on(data))
            numbers.append(number)
        return numbers

    def pull(self, numbers: Iterable[str]) -> list[Fetched]:
        """Return the replies of finished calls; raise whatever ends the job."""
        found = []
        for number in numbers:
            if number in self._calls and self._calls[number].done():
                try:
                    found.append(fetch_handed_back(number, self._calls.pop(number).result()))
                except CollabCallError:
                    # Drop the error's text, which may quote what only the site's owner should read.
                    found.append(Fetched(number, None, "nvflare-call-failed"))
        return found

    def close(self) -> None:
        """Wait for no call any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Coordinator:
    """The server's end of a job.

    Args:
        file: of the coordinator, on the server.
    """

    def __init__(self, file: str) -> None:
        self.file = file

    def _run(self) -> None:
        # Imported here, because a client does not need the coordinator's imports.
        from hedgerow.carriers.coordinator import coordinate

        file, carrier = read_coordinator_file(Path(self.file)), CollabCarrier(collab.clients)
        patience = Patience(poll=0.01, longest_poll=0.05, repeat=file.repeat, longest_repeat=10.0 * file.repeat)
        try:
            coordinate(file, carrier, patience)
        finally:
            carrier.close()

    run = collab.main(_run)


class SiteNode:
    """A client's end of a job: it hands requests to the site's node.

    The node answers only the pinned coordinator.
    """

    def _answer(self, request: bytes) -> bytes:
        """Answer a HandedOn with a HandedBack."""
        return answer_handed_on(find_own_site, request)

    answer = collab.publish(_answer)


def find_own_site() -> Path:
    """Return this client's site file, or its node's socket, in its own workspace.

    In a simulation the environment names the folder.
    """
    folder, name = os.environ.get(SITES_VARIABLE), str(collab.site_name)
    if folder:
        return Path(folder, name, "site.toml")
    return find_site(Path(collab.fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir()))


def make_recipe(name: str, coordinator: str, min_clients: int) -> Any:
    """Make a job as NVFlare's recipes are: to run in an environment of NVFlare, or to export to a folder.

    Args:
        coordinator: the coordinator's file on the server; absolute, for the job runs in a folder of its own.
        min_clients: with fewer clients NVFlare does not begin.

    Raises:
        UsageError: `party-file` for a file that is not absolute.
    """
    if not Path(coordinator).is_absolute():
        raise UsageError("party-file", path=coordinator, fault="it has to be absolute")
    recipe = CollabRecipe(name, Coordinator(coordinator), SiteNode(), min_clients=min_clients)
    # Otherwise NVFlare sends this package along, and clients run it in place of their installed one.
    recipe._job.set_app_packages(["hedgerow"])
    return recipe
