"""What mkdocs asks of us: files at the top of the repository are pages of the site too, with their links right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FROM_THE_TOP = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The file at the top in place of a page's own text; and the wire, which has every common word, is not searched."""
    if page.file.src_uri == "wire.md":
        page.meta["search"] = {"exclude": True}
    name = FROM_THE_TOP.get(page.file.src_uri)
    if name is None:
        return markdown
    text = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](").replace("](SECURITY.md)", "](security.md)")


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """The first notebook with a link that opens it in Colab, where a hosted workflow says which repository it is of."""
    repository = os.environ.get("GITHUB_REPOSITORY")
    if repository is None or page.file.src_uri != "notebooks/own-table.ipynb":
        return html
    place = f"https://colab.research.google.com/github/{repository}/blob/main/docs/{page.file.src_uri}"
    return f'<p><a href="{place}">Open in Colab</a> (first: <code>!pip install "hedgerow[sklearn]"</code>)</p>{html}'
