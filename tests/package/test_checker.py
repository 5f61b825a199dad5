"""The page for output checkers lists every file that a command writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hedgerow"
ENDINGS = "csv|db|html|invitation|json|log|npy|onnx|pdf|png|py|reply|request|svg|toml|txt|xml|yaml|yml"
READ_ONLY = {"hedgerow.toml", "site.toml", "__init__.py", "direct_url.json"}
"""Names of files that a person or another program writes."""


def list_names() -> Iterator[str]:
    """Names, and ends of names, of files in the package's code, but for those of the package's own files."""
    own = {path.name for path in PACKAGE.rglob("*")} - {"recount.py", "study.py"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            # A bare ending, such as ".csv", names a form and no file.
            if re.fullmatch(rf"(?:\*?[-.]?\w[\w-]*|\*?\.\w+|\*?-\w+)\.(?:{ENDINGS})", text) and text not in own:
                yield text.lstrip("*")


def test_the_checkers_page_lists_every_file_that_is_written() -> None:
    """Whoever decides what may leave a secure environment finds each file, and what of it is exact."""
    page = (ROOT / "docs" / "checker.md").read_text(encoding="utf-8")
    table = page.partition("## What is in each file")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.split("\n") if "|" in line]
    listed = {name for cell in cells for name in re.findall(r"`([^` ]+)`", cell)}
    names = set(list_names()) - READ_ONLY
    # Beside every budget book is one of what other sites signed.
    names |= {name.replace("budget", "peers") for name in names if "budget" in name}
    assert {"-budget.db", "-peers.db", "evidence.json", "recalibrated.json", "node.db"} <= names and len(names) > 30
    whole = {f"x{name}" if name[0] in "-." else name for name in names}
    assert sorted(name for name in whole if not any(fnmatch(name, own) for own in listed)) == []
    # What lies beside a journal, and tells a node where its book is.
    assert {"budget.path", "*.carried", "*.paused", "*.unmet"} <= listed
    # Pages and figures whose names the user gives.
    assert {"attack.html", "calibration.png", "*.request", "*.reply"} <= listed
