"""Model files: read, checked and written whole or not at all.

A file is one JSON object in a fixed order of keys, so equal models are equal bytes. Its `checksum` is the SHA-256 of
everything else in that canonical form: it catches accidents and edits, not a forger, who can compute it as well.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from hedgerow.protocol.errors import EnvironmentFault, ModelError
from hedgerow.protocol.plain_values import require_plain
from hedgerow.trees.ensemble_json import invalid, newer

FORMAT = "hedgerow-model"
FILE_VERSION = 2
"""Version 1 had another report, and is read; its ledger says what the report is compared with."""


def canonical_bytes(content: dict[str, Any]) -> bytes:
    """JSON with sorted keys, no blanks, ASCII only and finite numbers only."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def to_bytes(content: dict[str, Any]) -> bytes:
    """A model file's bytes: `content` with its format, version and checksum."""
    whole = {**content, "format": FORMAT, "version": FILE_VERSION}
    whole["checksum"] = hashlib.sha256(canonical_bytes(whole)).hexdigest()
    return canonical_bytes(whole) + b"\n"


def read_content(path: Path) -> dict[str, Any]:
    """The JSON object in a model file, of the right format and of a version that can be read.

    The checksum is left to `check_checksum`, so that damage is named as precisely as possible.

    Raises:
        ModelError: code "model-not-found", "model-empty", "model-not-json", "model-truncated", "model-wrong-kind" or
            "model-newer-version".
        EnvironmentFault: the file is there but cannot be read.
    """
    content = _parse(_read(path), path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelError(
            f"{path} is JSON, but no Hedgerow model.",
            cause="It may be an exported XGBoost model, a plan or a report.",
            remedy="Give the file that `hedgerow train` wrote with --out.",
            code="model-wrong-kind",
        )
    try:
        require_plain(content)
    except ValueError as fault:
        raise invalid(str(fault)) from None
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise invalid("its version is not a whole number above 0")
    if version > FILE_VERSION:
        raise newer(f"model file {path}", version, FILE_VERSION)
    return content


def check_checksum(content: dict[str, Any]) -> None:
    """Refuse content that is not what was written.

    Raises:
        ModelError: code "model-checksum".
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    if content.get("checksum") != hashlib.sha256(canonical_bytes(rest)).hexdigest():
        raise ModelError(
            "The model file's content does not match its checksum.",
            cause="It was edited by hand, or changed on its way here.",
            remedy="Take a fresh copy from where the model was trained.",
            code="model-checksum",
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`: afterwards the file holds either all of it or what it held before.

    Raises:
        EnvironmentFault: code "disk-full" or "file-not-written".
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise EnvironmentFault(
            f"{path} could not be written: {fault.strerror or fault}.",
            cause="The disk or the account's quota is full." if full else "",
            remedy="Free some space or write elsewhere." if full else "Choose a folder that you may write to.",
            code="disk-full" if full else "file-not-written",
        ) from fault


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as fault:
        raise ModelError(
            f"There is no model file {path}.",
            remedy="Check the path, or train a model first.",
            code="model-not-found",
        ) from fault
    except OSError as fault:
        raise EnvironmentFault(
            f"{path} could not be read: {fault.strerror or fault}.",
            remedy="Give a file that you may read.",
            code="file-not-read",
        ) from fault
    if not data:
        raise ModelError(
            f"The model file {path} is empty.",
            cause="A copy was interrupted, or the disk was full when it was copied.",
            remedy="Copy the file again.",
            code="model-empty",
        )
    return data


def _parse(data: bytes, path: Path) -> Any:
    text = data.decode("utf-8", errors="replace")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as fault:
        if text.startswith("{") and (fault.pos >= len(text) or fault.msg.startswith("Unterminated")):
            raise ModelError(
                f"The model file {path} breaks off after {len(data)} bytes.",
                cause="A copy or a download was interrupted.",
                remedy="Copy the file again.",
                code="model-truncated",
            ) from fault
        raise _not_json(path, str(fault)) from fault
    except (ValueError, RecursionError) as fault:
        raise _not_json(path, str(fault)) from fault


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _not_json(path: Path, detail: str) -> ModelError:
    return ModelError(
        f"{path} is not JSON ({detail}).",
        cause="It is not a model file, or it is compressed.",
        remedy="Give the file that `hedgerow train` wrote with --out.",
        code="model-not-json",
    )
