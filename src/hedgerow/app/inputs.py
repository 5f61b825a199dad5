# SPDX-License-Identifier: Apache-2.0
"""What commands are given, checked before work starts: plans, sites, places to write, addresses, policies, rosters."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.errors import EnvironmentFault, PlanError, PolicyRefusal, UsageError
from hedgerow.plan.plan import Plan, parse_plan
from hedgerow.plan.toml import schema_line, toml_value
from hedgerow.plugins import load_agreed

if TYPE_CHECKING:
    from hedgerow.client.policy import Policy
    from hedgerow.crypto import Identity
    from hedgerow.data.sources import Location
    from hedgerow.secagg.messages import Roster
    from hedgerow.transport.identities import PinnedRoster, PrivateIdentity

_PICTURES = (".png", ".svg", ".pdf")

PLAN, ROSTER, POLICY = "plan.toml", "roster.toml", "policy.toml"
"""Names of these files in the folder of a study, or of a party of one."""


def read_plan(path: str, *, is_own: bool = False) -> Plan:
    """Read a plan from a TOML file; with `is_own`, a file that nobody else can change.

    Raises:
        PlanError: the file is not there, is not text, or the plan is wrong.
        EnvironmentFault: as `hedgerow.transport.identities.read_own`, where it has to be one's own.
    """
    return parse_plan(read_text(path, is_own=is_own))


def read_text(path: str, *, is_own: bool = False) -> str:
    """Read the text of a plan's file, with gaps or without; raise as `read_plan`."""
    try:
        if is_own:
            # Imported here, because most plans are read without this check, and then need no numpy.
            from hedgerow.transport.identities import read_own

            return read_own(Path(path))
        # "utf-8-sig" drops the byte-order mark that some editors write.
        return Path(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError):
        raise PlanError("plan-not-found", path=path) from None
    except UnicodeDecodeError:
        raise PlanError("plan-syntax", code="plan-encoding", error=f"{path} is not UTF-8 text") from None


def parse_sites(arguments: Sequence[str]) -> dict[str, str]:
    """Parse `[NAME=]TABLE` arguments into each site's table, a file or a URL, by the site's name.

    Raises:
        UsageError: two sites have the same name.
    """
    sites: dict[str, str] = {}
    for argument in arguments:
        name, place = _parse_site(argument)
        if name in sites:
            expected = f"another name, --site NAME=FILE: there is a site called {name!r}, as its file is or as you said"
            raise UsageError("argument", code="duplicate-site", name="--site", value=argument, expected=expected)
        sites[name] = place
    return sites


def adapt_sites(tables: Mapping[str, str], given: Sequence[str]) -> dict[str, Location]:
    """Return each site's table by name, to be read as the site writes it.

    Args:
        given: `[NAME=]FILE` arguments; one without a name is for the sites that have none of their own.

    Raises:
        UsageError: a file is not an adapter, a site has one already, or there is no table.
    """
    # Imported here, because commands without a table need no pyarrow.
    from hedgerow.data.adapters import PLAIN, read_adapter
    from hedgerow.data.sources import adapt

    files: dict[str, str] = {}
    for argument in given:
        name, equals, path = argument.partition("=")
        name, path = (name, path) if equals and name in tables else ("", argument)
        if not tables:
            raise UsageError("adapter-no-table", argument=argument)
        if name in files:
            expected = "one file for each site, NAME=FILE, and at most one without a name, for all others"
            raise UsageError("argument", code="adapter-file", name="--adapter", value=argument, expected=expected)
        files[name] = path
    own = {name: read_adapter(path) for name, path in files.items()}
    return {name: adapt(place, own.get(name, own.get("", PLAIN))) for name, place in tables.items()}


def adapt_table(place: str, file: str | None) -> Location:
    """Return one site's table, to be read as the site's file says, if any; raise UsageError."""
    return adapt_sites({"": place}, [] if file is None else [file])[""]


def _parse_site(argument: str) -> tuple[str, str]:
    name, equals, place = argument.partition("=")
    # A "#" separates declarations about a file, or a query.
    if equals and name and not {os.sep, "#"} & set(name) and place and not Path(argument).exists():
        return name, place
    # Not at the top, as above.
    from hedgerow.data.sources import file_ending, file_path, is_url

    if is_url(argument):
        # Take only the database's name, because a password may stand before it.
        _, slash, database = re.split("[?#]", argument, maxsplit=1)[0].partition("://")[2].rpartition("/")
        return (Path(database).stem if slash else "") or "database", argument
    file = Path(file_path(argument)).name
    return file[: len(file) - len(file_ending(file))] or file, str(Path(argument))


def check_can_write(path: str, *reads: str | None) -> Path:
    """Return the path if a file can be written there; checked early, as a second training costs again.

    Args:
        reads: files that the command reads, or folders of them: a slip of the hand may not cost one of them.

    Raises:
        UsageError: the path is a folder or one of `reads`, or its folder does not exist.
        EnvironmentFault: its folder may not be written to.
    """
    file = Path(path)
    if file.is_dir():
        raise UsageError("exists", code="out-is-folder", path=path)
    found = [read for read in reads if read is not None and os.path.exists(read)] if file.exists() else []
    if any(place.samefile(read) for read in found for place in (file, file.parent)):
        raise UsageError("exists", code="out-is-input", path=path)
    if not file.parent.is_dir():
        folder = file.parent
        wanted = f"a folder that is there, or make this one: mkdir -p {folder}"
        raise UsageError("not-found", code="out-folder-missing", path=folder, wanted=wanted)
    if not os.access(file.parent, os.W_OK):
        raise EnvironmentFault("file-not-written", path=file.parent, fault="this user may not write there")
    return file


def new_file(path: str) -> Path:
    """Return the path for a new plan if no file is there; raise as `check_can_write`, and UsageError."""
    file = check_can_write(path)
    if file.exists():
        raise UsageError("exists", code="plan-exists", path=file)
    return file


def output_folder(path: str) -> Path:
    """Return the folder for a command's output, making it if needed; UsageError if it is a file."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError("exists", code="out-not-folder", path=path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def picture_file(path: str) -> Path:
    """Return the path for a picture; raise as `check_can_write`, and UsageError for another ending."""
    file = check_can_write(path)
    if file.suffix.lower() not in _PICTURES:
        expected = f"a name that ends in {' or '.join(_PICTURES)}"
        raise UsageError("argument", code="picture-format", name="The picture", value=str(file), expected=expected)
    return file


def is_terminal() -> bool:
    """Return whether a person can be asked and can type an answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def prompt(question: str) -> str:
    """Read a person's line from the terminal; KeyboardInterrupt at its end (Ctrl-D), as for Ctrl-C."""
    # If stdout is a file, print the question on stderr.
    aside = "" if sys.stdout.isatty() else f"{question} "
    print(end=aside, file=sys.stderr, flush=True)
    try:
        return input("" if aside else f"{question} ").strip()
    except EOFError:
        raise KeyboardInterrupt from None


class OpenQuestion:
    """A question at the terminal that does not stop other work.

    The answer is read line by line as the terminal delivers it, so nothing waits for an absent person.

    Args:
        question: the text, which says what an empty line does.
    """

    def __init__(self, question: str) -> None:
        self._question, self._typed, self._is_shown = question, b"", False

    def poll(self, seconds: float) -> str | None:
        """Return the typed line, waiting at most this many seconds; None if there is none yet.

        Raises:
            KeyboardInterrupt: the terminal has ended (Ctrl-D), as for Ctrl-C.
        """
        if not self._is_shown:
            self._is_shown = True
            print(f"{self._question} ", end="", file=sys.stdout if sys.stdout.isatty() else sys.stderr, flush=True)
        terminal = sys.stdin.fileno()
        if not select.select([terminal], [], [], seconds)[0]:
            return None
        found = os.read(terminal, 4096)
        if not found:
            raise KeyboardInterrupt
        self._typed += found
        if not self._typed.endswith(b"\n"):
            return None
        typed, self._typed, self._is_shown = self._typed, b"", False
        return typed.decode(errors="replace").strip()

    def step_aside(self) -> None:
        """End the question's line before a remark is printed; `poll` shows the question again."""
        if self._is_shown:
            self._is_shown = False
            print(file=sys.stdout if sys.stdout.isatty() else sys.stderr, flush=True)


def prompt_while(question: str, is_open: Callable[[], bool], seconds: float = 0.3) -> str | None:
    """Return a person's line from the terminal, or None once the question is closed.

    Args:
        is_open: asked again every `seconds`; it may have been answered elsewhere.
    """
    asked = OpenQuestion(question)
    while is_open():
        if (said := asked.poll(seconds)) is not None:
            return said
    asked.step_aside()
    return None


def says_yes(question: str, *, if_empty: str = "") -> bool:
    """Ask until a person answers yes or no; return True for yes. KeyboardInterrupt as `prompt`.

    Args:
        if_empty: "no" where an empty line says that.
    """
    words = "yes/NO" if if_empty else "yes/no"
    while (said := prompt(f"{question} [{words}]").lower() or if_empty) not in ("yes", "y", "no", "n"):
        pass
    return said.startswith("y")


def ask_to_go_on() -> None:
    """Ask a person at the terminal whether to go on despite a warning; without a terminal go on.

    Raises PolicyRefusal (code "not-agreed").
    """
    if is_terminal() and not says_yes("Go on all the same?", if_empty="no"):
        raise PolicyRefusal("not-agreed")


def join_names(names: Iterable[str]) -> str:
    """Names for a person, the first dozen of many."""
    every = list(names)
    rest = f" and {len(every) - 12} more" if len(every) > 12 else ""
    return ", ".join(every[:12]) + rest


def read_max_rows(given: str, number: str, expected: str = "a whole number, as in 5000") -> int:
    """Read the number of rows given for ``--max-rows``; raise UsageError (code "usage")."""
    # Imported here, because it needs numpy, which other commands do without.
    from hedgerow.codec import MAX_ROWS

    if number.isascii() and number.isdecimal() and 1 <= int(number[:20]) <= MAX_ROWS:
        return int(number)
    raise UsageError("argument", code="usage", name="--max-rows", value=given, expected=expected)


def read_policy(path: str) -> Policy:
    """Read a policy from its TOML file and load its plug-ins.

    Raises:
        UsageError: there is no such file, or it is no TOML text.
        HedgerowError: the errors of `read_own`, `parse_policy` and `load_agreed`.
    """
    # Imported here, because commands without a policy need no numba.
    from hedgerow.client.policy import parse_policy
    from hedgerow.transport.identities import read_own

    try:
        policy = parse_policy(read_own(Path(path)))
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(
            "not-found", code="policy-not-found", path=path,
            wanted="the policy that this site's owner wrote; docs/operate.md has one to begin with",
        ) from None  # fmt: skip
    except UnicodeDecodeError:
        raise UsageError("not-toml", code="policy-file", name=path, fault="it is not UTF-8 text") from None
    load_agreed(policy.plugins)
    return policy


def signing_key(identity: PrivateIdentity) -> Identity:
    """Return the key with which a party signs messages of secure aggregation."""
    # Not at the top, as above.
    from hedgerow.crypto import Identity

    return Identity(identity.seed)


def signing_roster(pinned: PinnedRoster) -> Roster:
    """Return the roster for secure aggregation: names and Ed25519 keys, in the order of node numbers."""
    # Not at the top, as above.
    from hedgerow.secagg.messages import Roster, Site

    sites = tuple(Site(site.name, site.identity_key, pinned.find_max_rows(site.name)) for site in pinned.sites)
    return Roster(pinned.coordinator.identity_key, sites)


def parse_proposal(text: str) -> Policy:
    """Parse the policy that an invitation proposes, in the form of `build_policy`.

    Raises:
        UsageError: code "policy-file"; it cannot be read, or has lines that only an owner may write: how a table is
            read, and what code is loaded.
    """
    from hedgerow.client.policy import parse_policy
    from hedgerow.data.adapters import PLAIN

    found = parse_policy(text)
    for line, usual in (("data", PLAIN), ("plugins", ())):
        if getattr(found, line) != usual:
            cause = "How a table is read, and what code is loaded, is for the owner of each site to say."
            remedy = "Leave it out; owners write such a line into a policy of their own: `hedgerow join --policy FILE`."
            what = f"An invitation proposes no {line!r}."
            raise UsageError("policy-file", code="policy-file", what=what, cause=cause, remedy=remedy)
    return found


def build_policy(proposed: str, data_set: str, noise: str = "distributed") -> str:
    """Build a policy's text from a proposal and the owner's name of the data.

    Args:
        noise: the plan's noise mode. A proposal does not grant noise that others add: every owner is asked for it in
            words.
    """
    # A proposal that names the data as well cannot be read: with a new name for them, their budget would begin again.
    grants = "" if noise == "distributed" or re.search(r"(?m)^\s*noise\b", proposed) else f'noise = ["{noise}"]\n'
    return f"{schema_line('policy')}\nversion = 1\ndata_set = {toml_value(data_set)}\n{grants}{proposed}"
