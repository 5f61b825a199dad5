"""The app that Flower carries to coordinator and nodes: a shim around the Hedgerow that is installed there.

Nothing of Hedgerow travels with it. It refuses to work with an installed version other than its own.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

VERSION = "0.2.0"

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def coordinate(grid: Grid, context: Context) -> None:
    """Run the plan of the coordinator's file."""
    from hedgerow.carriers.flower import serve

    serve(grid, context, VERSION)


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the coordinator."""
    # Where it fails, this SuperNode has no Hedgerow, or one without Flower; see docs/flower.md.
    from hedgerow.carriers.flower import reply_to

    return reply_to(message, context, VERSION)
