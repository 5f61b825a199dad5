"""What docs/deploy.md tells an operator is what the code does: its policy is read, and its code words exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hedgerow.cli.parser import build_parser
from hedgerow.client.policy import parse_policy
from hedgerow.protocol.plan import parse_plan
from hedgerow.protocol.wire.refusals import WireCode
from hedgerow.secagg.transitions import Code

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "hedgerow-node.service").read_text(encoding="utf-8")


def commands_of(text: str) -> list[list[str]]:
    """Every `hedgerow ...` command in the document's shell blocks and the unit, split into words."""
    blocks = [*re.findall(r"```sh\n(.*?)```", text, re.DOTALL), *re.findall(r"^ExecStart=.*?[^\\]$", UNIT, re.M | re.S)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^|/bin/|localhost/)hedgerow (?=[a-z]+ )(.*?)(?: > \S+)?$", line) for line in lines]
    return [match[1].split() for match in found if match]


def test_the_policy_to_begin_with_is_one() -> None:
    """The example is copied to start from, so it must be read, also with the lines that are commented out."""
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL) if "max_epsilon" in block]
    assert parse_policy(text).min_sites == 3
    everything = parse_policy(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    assert everything.requires_echo and everything.query_kinds and everything.coordinators


def test_the_policy_to_begin_with_accepts_the_plan_to_begin_with() -> None:
    """An operator who follows the document is not refused by the document's own policy."""
    plan, policy = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    parse_policy(policy).check_plan(parse_plan(plan))


@pytest.mark.parametrize("words", commands_of(DOCUMENT), ids=" ".join)
def test_every_command_is_one_that_hedgerow_knows(words: list[str]) -> None:
    """A command with an option that does not exist would fail on the operator's machine."""
    assert build_parser().parse_args(words).module.startswith("hedgerow.cli.")


def test_every_code_word_of_the_incident_list_exists() -> None:
    """An operator searches the list for the word in the log."""
    incidents = DOCUMENT.split("## Incidents")[1]
    words = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", incidents))
    assert len(words) > 12
    rooms = ("client", "server", "storage", "transport", "protocol", "src/hedgerow/cli")
    sources = "".join(path.read_text(encoding="utf-8") for room in rooms for path in (ROOT / room).glob("*.py"))
    known = {code.value for code in (*WireCode, *Code)} | set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', sources))
    assert words <= known
