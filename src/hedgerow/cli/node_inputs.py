"""What a node is given, however it is reached: tables or databases, and the models that it may evaluate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hedgerow.client.arrivals import ArrivalFolder
from hedgerow.client.node import SiteData
from hedgerow.client.reading_sql import read_sql_records
from hedgerow.model import Model
from hedgerow.protocol.errors import UsageError
from hedgerow.protocol.plan import Plan
from hedgerow.site_data import read_site_data, site_data_from_records
from hedgerow.training.tasks import digest_of_model


def loader(data: str, query: str | None) -> Callable[[Plan], SiteData]:
    """How the site's rows are read once there is a plan.

    Raises:
        UsageError: a URL without a query, or a query without a URL.
    """
    is_url = "://" in data
    if is_url != (query is not None):
        raise UsageError(
            "A database's URL and --query belong together.",
            remedy="Give both, or the path of a file and no query.",
            code="query-without-url",
        )
    if query is None:
        return lambda plan: read_site_data(data, plan)[0]
    return lambda plan: site_data_from_records(read_sql_records(data, query, plan), plan)[0]


def arrivals_of(folder: str | None) -> ArrivalFolder | None:
    """The folder of tables that come while a run goes on; None for none; EnvironmentFault when it is not there."""
    if folder is None:
        return None
    source = ArrivalFolder(Path(folder), lambda path, plan: read_site_data(path, plan)[0])
    source.names()
    return source


def model_digest(path: str) -> bytes:
    """32 bytes that tell the model of a file apart, as an evaluation's task does; raises ModelError."""
    return digest_of_model(Model.load(path).ensemble)
