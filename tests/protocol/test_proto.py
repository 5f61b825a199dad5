"""The .proto file: the generated code is its own, and both sides call what it declares."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from hedgerow.codec import VERSION
from hedgerow.protocol import hedgerow_pb2 as pb
from hedgerow.transport.grpc_link import ENROL, JOIN, WATCH

ROOT = Path(__file__).resolve().parent.parent.parent
PROTO = "hedgerow/protocol/hedgerow.proto"


def test_the_generated_code_is_fresh(tmp_path: Path) -> None:
    """`make proto` would change nothing: who edits the .proto file and forgets that is told here."""
    pytest.importorskip("grpc_tools")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        ".",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, PROTO], cwd=ROOT / "src", check=True)
    for suffix in (".py", ".pyi"):
        name = PROTO.replace(".proto", f"_pb2{suffix}")
        assert (tmp_path / name).read_text() == (ROOT / "src" / name).read_text(), f"{name} is stale: make proto"


def test_every_field_is_documented() -> None:
    """Each line of the .proto file that declares something has a comment above it."""
    lines = (ROOT / "src" / PROTO).read_text().splitlines()
    for above, line in pairwise(lines):
        declares = (line.strip().endswith(";") and " = " in line) or line.startswith(("message", "service"))
        if declares:
            assert above.strip().startswith("//"), line


def test_both_sides_call_the_methods_of_the_file() -> None:
    """The services are those that are served, and their names have the version of all that is said there."""
    services = pb.DESCRIPTOR.services_by_name.values()
    assert {f"/{service.full_name}/{method.name}" for service in services for method in service.methods} == {
        ENROL,
        JOIN,
        WATCH,
    }
    assert pb.DESCRIPTOR.package == f"hedgerow.wire.v{VERSION}"
