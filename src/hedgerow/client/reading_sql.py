"""Read a site's table from a database: any SQLAlchemy URL and one SELECT, in chunks.

What the database says of a failure may quote rows or the password in the URL, so none of it is passed on but its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hedgerow.client import data_errors
from hedgerow.client.records import Records, RowsLeftOut, needed_columns, records_from_columns
from hedgerow.protocol.errors import DataError, EnvironmentFault, missing_extra
from hedgerow.protocol.plan import Plan

SOURCE = "The query's result"


def read_sql_records(
    url: str, query: str, plan: Plan, *, chunk_rows: int = 65536, left_out: RowsLeftOut | None = None
) -> Iterator[Records]:
    """Read what a query gives, with labels (and identifiers, if the plan has a unit), in chunks.

    Args:
        url: as SQLAlchemy takes it: "postgresql+psycopg://user@host/database", "sqlite:///file.db".
        query: one SELECT whose columns are named as in the plan; others are ignored. Order it by a key: which rows of
            a unit are used must not depend on the database's mood.
        left_out: where rows that do not fit are counted, as `records_from_columns` does; None refuses the first.

    Raises:
        DataError: code "data-sql" when the database refuses; else as `reading.read_records`.
        EnvironmentFault: code "missing-extra" when SQLAlchemy, or the database's own driver, is not installed.
    """
    try:
        import sqlalchemy
        from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
    except ModuleNotFoundError:
        raise missing_extra("sqlalchemy", "Reading from a database") from None
    names = needed_columns(plan)
    try:
        engine = sqlalchemy.create_engine(url)
        if engine.dialect.name == "sqlite":
            sqlalchemy.event.listen(engine, "connect", _keep_odd_bytes)
        with engine.connect().execution_options(stream_results=True) as connection:
            result = connection.execute(sqlalchemy.text(query))
            present = [str(name) for name in result.keys()]
            at = _positions(names, present)
            first_row = 1
            for rows in result.partitions(chunk_rows):
                columns: dict[str, Any] = {name: [row[at[name]] for row in rows] for name in names}
                yield records_from_columns(columns, plan, source=SOURCE, first_row=first_row, left_out=left_out)
                first_row += len(rows)
    except (NoSuchModuleError, ModuleNotFoundError) as absent:
        raise _missing_driver(getattr(absent, "name", None)) from None
    except SQLAlchemyError as fault:
        raise DataError(
            f"The database did not give the rows ({type(fault).__name__}).",
            cause="The URL, the password or the query is wrong, or the database cannot be reached.",
            remedy="Try the same query with the database's own client.",
            code="data-sql",
        ) from None


def _keep_odd_bytes(connection: Any, _: object) -> None:
    """Text that is not UTF-8 stays bytes: SQLite's driver would give the whole query up because of one cell."""

    def decoded(content: bytes) -> str | bytes:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content

    connection.text_factory = decoded


def _positions(names: tuple[str, ...], present: list[str]) -> dict[str, int]:
    for name in names:
        if present.count(name) > 1:
            raise data_errors.duplicate_column(SOURCE, name)
    missing = [name for name in names if name not in present]
    if missing:
        raise data_errors.missing_columns(SOURCE, missing, present)
    return {name: present.index(name) for name in names}


def _missing_driver(module: str | None) -> EnvironmentFault:
    """Without a module's name it is the URL's own beginning that SQLAlchemy does not know."""
    return EnvironmentFault(
        f"The database's driver is not installed{f': {module}' if module else ''}.",
        cause="The URL names the driver, as in postgresql+psycopg://; a name may also be misspelled.",
        remedy=f"Install it: pip install {module}" if module else "Install the driver, or mend the URL's beginning.",
        code="missing-extra",
    )
