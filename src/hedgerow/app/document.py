# SPDX-License-Identifier: Apache-2.0
"""One page in one file: statistics, a model's report, an attack on it and the evidence for reviewers are made here.

`document.html` has the style; a page asks nothing of another host and has no script. What is given as text is escaped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template


def render_document(title: str, subtitle: str, body: Iterable[str]) -> str:
    """Render the page from parts made by the functions below."""
    template = resources.files("hedgerow.app").joinpath("document.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=escape(title), subtitle=escape(subtitle), body="\n".join(body))


def render_section(title: str, parts: Iterable[str]) -> str:
    """Render a part of the page with a heading, to which `render_contents` links."""
    return f'<section><h2 id="{_anchor(title)}">{escape(title)}</h2>\n' + "\n".join(parts) + "</section>"


def render_contents(titles: Iterable[str]) -> str:
    """Render links to sections."""
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in titles)
    return f'<nav aria-label="Contents">{links}</nav>'


def render_text(text: str, look: str = "") -> str:
    """Render a paragraph; `look` is a class of the page's style: "muted", "void" or "sign"."""
    return f'<p class="{look}">{escape(text)}</p>' if look else f"<p>{escape(text)}</p>"


def render_figures(figures: Iterable[tuple[str, str]]) -> str:
    """Render a few numbers in large type, each with its name."""
    said = "".join(
        f'<div><b>{escape(value)}</b><span class="muted">{escape(name)}</span></div>' for name, value in figures
    )
    return f'<div class="figures">{said}</div>'


def render_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Render a list of names and texts; a text with an empty name continues the one above it."""
    joined: list[tuple[str, list[str]]] = []
    for name, text in facts:
        if name or not joined:
            joined.append((name, []))
        joined[-1][1].append(text)
    said = "".join(f"<dt>{escape(name)}</dt><dd>{'<br>'.join(map(escape, texts))}</dd>" for name, texts in joined)
    return f"<dl>{said}</dl>"


def render_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a table that scrolls sideways by itself.

    Args:
        title: what it is, for those who hear the page.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def render_picture(png: bytes, text: str) -> str:
    """Embed a picture in the page; `text` describes it."""
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def render_printed(text: str) -> str:
    """Render a command's output, line by line."""
    return f"<pre>{escape(text)}</pre>"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
