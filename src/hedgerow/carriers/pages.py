# SPDX-License-Identifier: Apache-2.0
"""The page beside each carried file, in plain words, for the person who lets the file pass and signs for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from hedgerow.app.output import wrap_text
from hedgerow.client.policy import Policy
from hedgerow.client.state import NodeStore
from hedgerow.codec import kind_in
from hedgerow.methods.tasks import find_visibility
from hedgerow.plan.plan import who_sees
from hedgerow.protocol.messages import MessageKind
from hedgerow.transport.envelope import Envelope, EnvelopeKind
from hedgerow.version import __version__

_COLUMNS = 84
_HOLDS = {
    MessageKind.HELLO: "A greeting: a random number, the run that this site is in, and how many of its results it has.",
    MessageKind.READY: "That this site takes part in the plan named below.",
    MessageKind.SETUP_ANSWER: "A step of the set-up: public keys, a random number, or parts of secret keys, each "
    "encrypted for one other site. It is made without the table: with no rows at all it would be the same.",
    MessageKind.UPLOAD: "Sums over all rows of this site, as the plan asks for them, as whole numbers. To each a "
    "random number is added (a mask), which the sites take away together, and from the sum of all of them, or of a "
    "group, only. With it the numbers are random: whoever reads them, the coordinator too, learns nothing of this site "
    "before that, and then what stands at \"who sees what\".",
    MessageKind.ECHO: "A signature under the list of the sites whose sums are added up.",
    MessageKind.ANSWER: "Parts of keys that take the masks off the sum of all sites, of this round alone.",
    MessageKind.REFUSED: "That this site refuses, with a code word: docs/errors.md has its meaning.",
    MessageKind.DONE: "That this site has the result, by its SHA-256.",
    MessageKind.DEFERRED: "That this site's owner is asked first.",
}
_CANNOT = """\
No row, no cell, no name, and no count or sum of this site that anyone could read$but. The length of a file follows \
from the plan and the number of sites, not from the rows. Nothing in it is executed where it is read, and a file that \
is changed by one bit is refused."""
_BUT_FIGURES = ", but for this site's own figures, which this site's policy lets it show"
_REQUEST_HOLDS = """\
What the coordinator asks this site next, and what the site needs for its answer: the plan, or the model that is \
evaluated, or the questions of a survey; lists of sites, their public keys, random numbers and signatures; parts of \
keys that are encrypted for this site; code words; and results of earlier rounds, the same for all parties. Noise was \
added to them as the run's task says; with an infinite epsilon there may be none. The page of this site's own answer \
says which ("who sees what")."""
_REQUEST_CANNOT = """\
No row and no cell, and of another site alone only figures that its own policy lets it show, in an evaluation by site, \
and with that site's noise. Nothing in it is executed: the site's own Hedgerow knows what may be \
asked, compares, and answers only what its owner's policy allows."""


def describe_reply(
    name: str, data: bytes, envelope: Envelope, messages: Sequence[bytes], state: Path, policy: Policy
) -> str:
    """Write the page of a file that leaves a site.

    Args:
        name: of the file, which holds `data`.
        messages: what is in the envelope.
        state: the folder of the site's node.
        policy: of the site's owner.
    """
    counts = Counter(MessageKind(kind_in(message)) for message in messages)
    sizes = {kind: sum(len(each) for each in messages if kind_in(each) == kind) for kind in counts}
    holds = [f"{_HOLDS[kind]} ({sizes[kind]:,} bytes.)" for kind in counts]
    if envelope.kind is EnvelopeKind.LOST:
        holds = ["That this site cannot go on from the file that it was sent, and has to be asked anew."]
    with closing(NodeStore(state)) as store:
        run = store.load()
    about = [("from", f"{envelope.site}, whose key has signed it"), ("to", "the coordinator, who alone can open it")]
    seen = "" if run is None else find_visibility(run.task, policy.shows_figures)
    if run is not None:
        plan = run.task.plan
        about += [
            ("run", run.run_id.hex()[:12]),
            ("plan", plan.name),
            ("plan's digest", plan.digest),
            ("promise", "epsilon {:g} at delta {:g}, for all that the run publishes".format(*run.task.promise)),
            ("who sees what", who_sees(seen)),
        ]
    cannot = _CANNOT.replace("$but", _BUT_FIGURES if "own-figures" in seen else "")
    return _render_page(f"File {name}, which leaves {envelope.site}", name, data, about, holds or ["Nothing."], cannot)


def describe_request(name: str, data: bytes, envelope: Envelope, site: str) -> str:
    """Write the page of a file for a site; arguments as for `describe_reply`."""
    opens = f"{site}, which alone can open it"
    if envelope.kind is EnvelopeKind.GREETING:
        opens = f"{site}; it is signed, and not encrypted: it holds the plan, which all parties have"
    about = [("from", "the coordinator, whose key has signed it"), ("to", opens)]
    return _render_page(f"File {name}, for {site}", name, data, about, [_REQUEST_HOLDS], _REQUEST_CANNOT)


def _render_page(
    title: str, name: str, data: bytes, about: Sequence[tuple[str, str]], holds: list[str], cannot: str
) -> str:
    facts = [
        *about,
        ("file", name),
        ("size", f"{len(data):,} bytes"),
        ("SHA-256", sha256(data).hexdigest()),
        ("written", f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, by Hedgerow {__version__}"),
    ]
    lines = [title, "=" * len(title), ""]
    lines += [wrap_text(f"{fact + ':':<17} {value}", 18, _COLUMNS) for fact, value in facts]
    lines += ["", "What it holds", "-------------", *(wrap_text(f"- {text}", 2, _COLUMNS) for text in holds)]
    lines += ["", "What it cannot hold", "-------------------", wrap_text(cannot, 0, _COLUMNS)]
    checks = [
        "- The SHA-256 above is that of the file: sha256sum shows it.",
        "- Site, plan and the plan's digest, where it stands above, are those that were approved.",
        "- `hedgerow --version` at the site says the version that was approved; its docs/airlock.md says more.",
    ]
    lines += ["", "To check", "--------", *(wrap_text(each, 2, _COLUMNS) for each in checks)]
    lines += ["", "Checked by: ______________________   Date: ____________   passed / held back", ""]
    return "\n".join(lines)
