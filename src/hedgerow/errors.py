# SPDX-License-Identifier: Apache-2.0
"""The errors that a user, an operator or a peer can meet.

    HedgerowError                     exit code  1
    ├── UsageError                               2   the command line was wrong
    ├── PlanError                                3   the plan is wrong or contradicts itself
    ├── DataError                                4   a site's data does not fit the plan
    ├── ModelError                               5   a model file cannot be used
    ├── PolicyRefusal                            6   a node's owner does not allow this
    ├── PrivacyError                             7   the ledger, an accountant or a calibration refuses
    ├── ProtocolError                            8   a peer sent what the protocol does not allow
    │   └── RemoteProtocolError                  8   the peer erred (a plain ProtocolError: we did)
    ├── AggregationError                         9   a secure sum was abandoned
    ├── EnvironmentFault                        10   the machine refused: disk, memory, network, a missing extra
    ├── LostRowsError                           11   too many rows of one's own table would be left out
    └── NothingFoundError                       12   noisy sums were paid for, and do not say what was asked for

An error carries three sentences for a person: what happened, the likely cause, and what to do. ``code`` is a stable
word for machines; the process ends with ``exit_code``. All sentences stand in one table, `errors.toml`.
"""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import ClassVar


class HedgerowError(Exception):
    """Base of all errors of this package.

    Its sentences are those of its entry in `errors.toml`, under the name of its class. They name the file, row, column,
    field or peer by the values that are given. A text that is no entry's name is taken for `what` itself; then `cause`
    and `remedy` may be among the values.

    Args:
        code: a stable kebab-case word for machines; the entry's own when not given.
        values: what the entry's sentences name in braces; `{code}` need not be given.

    Attributes:
        path: dotted path of the plan's field that it is about, where its entry says it; else empty.
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "error"

    def __init__(self, entry: str, /, *, code: str | None = None, **values: object) -> None:
        super().__init__(entry)
        row = entries().get(type(self).__name__, {}).get(entry)
        if row is None:
            row = _make_row(entry, self.default_code, values)
        self.code = code or _fill(row.get("code", entry), values)
        self.path = _fill(row.get("path", ""), values)
        self.what, self.cause, self.remedy = (
            _fill(row.get(part, ""), {"code": self.code, **values}) for part in ("what", "cause", "remedy")
        )

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.cause, self.remedy) if part)

    @property
    def public_code(self) -> str:
        """The code that a peer may be told; nothing else of the error leaves this side."""
        return self.code


class UsageError(HedgerowError, ValueError):
    """The command line, or a call of the Python interface, asks for something that does not exist."""

    exit_code = 2
    default_code = "usage"


class PlanError(HedgerowError, ValueError):
    """The plan is malformed or contradicts itself; `what` starts with the field's path."""

    exit_code = 3
    default_code = "plan"


class DataError(HedgerowError, ValueError):
    """A site's data cannot be read or does not fit the plan's schema.

    Its sentences are for the site's own operator: they name files, rows and columns, and `cause` may quote one cell.
    Only `public_code` may be sent to a peer.
    """

    exit_code = 4
    default_code = "data"

    @property
    def public_code(self) -> str:
        """The error's code if it follows from the table's head, else the general code.

        The kind of other faults would say more about rows, such as that a label occurs which a coordinator left out of
        its plan.
        """
        return self.code if self.code in _OF_TABLES else self.default_code


_OF_TABLES = {
    "data-missing-column", "data-duplicate-column", "data-file-missing", "data-permission", "data-unknown-format",
}  # fmt: skip
"""Faults of a table that do not depend on its rows."""


class ModelError(HedgerowError, ValueError):
    """A model file is empty, truncated, of a newer version, or unfit for its use."""

    exit_code = 5
    default_code = "model"


class PolicyRefusal(HedgerowError):
    """The policy of a site's owner does not allow what was asked."""

    exit_code = 6
    default_code = "policy"


class PrivacyError(HedgerowError, ValueError):
    """The ledger, an accountant or a calibration cannot vouch for what was asked."""

    exit_code = 7
    default_code = "privacy"


class ProtocolError(HedgerowError):
    """The protocol's rules were broken on this side."""

    exit_code = 8
    default_code = "protocol"


class RemoteProtocolError(ProtocolError):
    """A peer broke the protocol's rules."""

    default_code = "remote-protocol"


class AggregationError(HedgerowError):
    """A secure sum was abandoned; nothing was released."""

    exit_code = 9
    default_code = "aggregation"


class EnvironmentFault(HedgerowError):
    """The machine refused: the disk is full, a file is locked, an optional dependency is missing."""

    exit_code = 10
    default_code = "environment"


class LostRowsError(HedgerowError, ValueError):
    """More rows of one's own table would be left out than its owner allows.

    Nothing is spent; the error is for the owner alone.
    """

    exit_code = 11
    default_code = "rows-left-out"


class NothingFoundError(HedgerowError, ValueError):
    """The wanted facts do not stand out of the noise.

    The cost of the sums is spent, and the rest is kept.
    """

    exit_code = 12
    default_code = "nothing-found"


Row = Mapping[str, str]
"""An entry of the table: `what`; `cause` and `remedy` where not empty; `code` or `codes` where not the name; `path`."""


# Read the table now: a missing file descriptor may be the very error to report.
_TEXT = resources.files("hedgerow").joinpath("errors.toml").read_text(encoding="utf-8")


@cache
def entries() -> Mapping[str, Mapping[str, Row]]:
    """Return the table of errors: the entries by class and name."""
    # An ordinary start makes no error, and is faster without this.
    return tomllib.loads(_TEXT)


def _make_row(text: str, default_code: str, values: Mapping[str, object]) -> Row:
    """Make the row of an error outside the table, from its text or its name and values."""
    given = [f"{name}: {value}." for name, value in values.items() if name not in ("cause", "remedy")]
    row = {
        "what": text,
        "cause": " ".join([str(values.get("cause", "")), *given]).strip(),
        "remedy": str(values.get("remedy", "")),
        "code": default_code if " " in text else text,
    }
    return {name: part.replace("{", "{{").replace("}", "}}") for name, part in row.items()}


def _fill(sentence: str, values: Mapping[str, object]) -> str:
    """Return the sentence with its values.

    It is returned as it stands if a value is missing or does not fit, which tests exclude.
    """
    try:
        return sentence.format_map(values)
    except (LookupError, TypeError, ValueError, AttributeError):
        return sentence


OPTIONAL: Mapping[str, tuple[str, str]] = {
    "SurvSet": ("SurvSet", "survival"),
    "adbc_driver_postgresql": ("ADBC's PostgreSQL driver", "postgresql"),
    "autodp": ("autodp", "rdp"),
    "dp_accounting": ("dp-accounting", "pld"),
    "duckdb": ("DuckDB", "duckdb"),
    "flwr": ("flwr", "flower"),
    "matplotlib": ("matplotlib", "plots"),
    "mlflow": ("MLflow", "mlflow"),
    "narwhals": ("narwhals", "sklearn"),
    "nvflare": ("NVFlare", "nvflare"),
    "onnx": ("onnx", "onnx"),
    "pandas": ("pandas", "experiments"),
    "prometheus_client": ("prometheus_client", "console"),
    "ray": ("Ray", "shards"),
    "sklearn": ("scikit-learn 1.6 or newer", "sklearn"),
    "shtab": ("shtab", "completion"),
    "sksurv": ("scikit-survival", "survival"),
    "sqlalchemy": ("SQLAlchemy", "sql"),
    "starlette": ("Starlette", "console"),
    "uvicorn": ("Uvicorn", "console"),
    "xgboost": ("XGBoost", "experiments"),
}
"""Optional parts of an installation: the module that is imported, its package, and the extra that brings it."""


def missing_extra(module: str, what: str = "This") -> EnvironmentFault:
    """Return the error for an optional package that is not installed, of code "missing-extra".

    Args:
        module: a key of `OPTIONAL`.
        what: the thing that needs it, as the beginning of a sentence.
    """
    package, extra = OPTIONAL[module]
    return EnvironmentFault("missing-extra", what=what, package=package, install=name_to_install(extra))


def name_to_install(extra: str) -> str:
    """Return the words behind `pip install` that bring an extra to this installation.

    They name the source of this installation. An index that is asked for the bare name may lack it, or have another
    package of this name.
    """
    # Imported here, because an ordinary start makes no error.
    import json
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    # PEP 610; absent where an index gave it. What a build left in a checkout may be found first, and does not have it.
    known = (each.read_text("direct_url.json") for each in distributions(name="hedgerow"))
    try:
        origin = json.loads(next(filter(None, known), "{}"))
    except ValueError:
        origin = {}
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = Path(url2pathname(urlparse(url).path))
        place = "." if folder == Path.cwd() else str(folder)
        return f'{"-e " if origin["dir_info"].get("editable") else ""}"{place}[{extra}]"'
    if (source := origin.get("vcs_info")) is not None:
        url = f"{source['vcs']}+{url}@{source['commit_id']}"
    return f'"hedgerow[{extra}]{f" @ {url}" if url else ""}"'


def explain_import_error(fault: ImportError) -> EnvironmentFault | None:
    """Return the error for a failed import of an optional package; None for another failure."""
    module = (fault.name or "").partition(".")[0]
    return missing_extra(module) if module in OPTIONAL else None


def explain_kernel_error(fault: Exception) -> EnvironmentFault | None:
    """Return an error in words if numba may keep compiled code nowhere; None for every other error.

    Numba looks beside the installed package, then in the user's home; an account of a service often may write to
    neither.
    """
    is_it = isinstance(fault, RuntimeError) and "no locator available" in str(fault)
    return EnvironmentFault("no-place-for-kernels") if is_it else None


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's own code that led here, past all functions of Hedgerow."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hedgerow":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def warn_owner(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn of a fact that follows from rows without noise, and say that it is for their owner.

    Notebooks keep warnings.
    """
    warn_caller(f"{text} (Private: it follows from rows, without noise. Take it out of what you pass on.)", category)


def mark_private(text: str, code: str = "") -> str:
    """Mark a sentence as being for a site's owner alone; `code` is its entry among the errors, if any."""
    return f"{text} ({code}{'; ' if code else ''}private: for this site only)"
