"""Options are declared once: the command line and the files of carried parties follow from `hedgerow.app.options`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.app.options import NodeOptions
from hedgerow.carriers import read_site_file
from hedgerow.cli.commands import build_parser
from hedgerow.cli.options import read_options
from hedgerow.errors import UsageError
from hedgerow.plan.fields import list_fields
from hedgerow.plan.toml import toml_value

PARSER = build_parser()
FIELDS = {field.name: field for field in dataclasses.fields(NodeOptions) if field.name != "quiet"}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    name: st.sampled_from(["grpc"]) if name == "engine"
    else st.sampled_from(["text", "json"]) if name == "log_format"
    else st.just(True) if field.type == "bool"
    else st.integers(1, 4096) if "int" in str(field.type)
    else st.lists(st.from_regex("/[a-z]{1,9}", fullmatch=True), min_size=1, unique=True).map(tuple)
    if "tuple" in str(field.type)
    else st.from_regex("/[a-z]{1,9}", fullmatch=True)
    for name, field in FIELDS.items()
}  # fmt: skip
NEEDED = {name: VALUES[name] for name in ("identity", "roster", "policy", "data")}
IN_FILE = {field.name for field in list_fields(NodeOptions)}
SOME = st.fixed_dictionaries(NEEDED, optional={name: VALUES[name] for name in FIELDS.keys() - NEEDED.keys()})


@given(SOME)
def test_each_option_of_a_node_is_read_from_the_command_line(values: dict[str, Any]) -> None:
    """A node takes every option that its owner types as it is typed, and its declared default otherwise."""
    words = ["node", "--connect", values.setdefault("connect", "localhost:7443")]
    for name, value in values.items():
        option = "--" + FIELDS[name].metadata.get("option", name).replace("_", "-")
        for each in value if isinstance(value, tuple) else [value]:
            words += [each] if name == "data" else [option, *([] if each is True else [str(each)])]
    assert read_options(NodeOptions, PARSER.parse_args(words)) == NodeOptions(**values)


def read_file(file: Path, values: dict[str, Any]) -> NodeOptions:
    lines = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    file.write_text("\n".join(["version = 1", *(f"{name} = {toml_value(each)}" for name, each in lines.items())]))
    return read_site_file(file)


@given(SOME)
def test_each_option_of_a_carried_node_is_read_from_its_file(tmp_path_factory: Any, values: dict[str, Any]) -> None:
    """A site's file has the options of a node that make sense without a connection, and refuses all others."""
    file = tmp_path_factory.getbasetemp() / "site.toml"
    known = {name: value for name, value in values.items() if name in IN_FILE}
    assert read_file(file, known) == NodeOptions(**known)
    for name in values.keys() - IN_FILE:
        with pytest.raises(UsageError) as refused:
            read_file(file, known | {name: values[name]})
        assert refused.value.code == "party-file"
