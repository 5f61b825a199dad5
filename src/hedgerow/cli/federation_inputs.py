"""What the commands of a federation are given: addresses, policies, rosters."""

from __future__ import annotations

from pathlib import Path

from hedgerow.client.policy import Policy, parse_policy
from hedgerow.errors import UsageError
from hedgerow.secagg._primitives.identity import Identity
from hedgerow.secagg.roster import Roster, Site
from hedgerow.transport.identity import PrivateIdentity
from hedgerow.transport.roster_file import PinnedRoster


def address_of(text: str, option: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port".

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"{option} {text}: this is no address.",
            remedy="Write HOST:PORT, as in 127.0.0.1:7443 or [::1]:7443.",
            code="address",
        )
    return host, int(port)


def read_policy(path: str) -> Policy:
    """The policy in a TOML file; raises UsageError."""
    try:
        return parse_policy(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(
            f"{path}: there is no such file.",
            remedy="Give the policy that this site's owner wrote; docs/deploy.md has one to begin with.",
            code="policy-not-found",
        ) from None
    except UnicodeDecodeError:
        text = f"{path}: the policy is not UTF-8 text."
        raise UsageError(text, remedy="Save it as UTF-8.", code="policy-file") from None


def signing_key(identity: PrivateIdentity) -> Identity:
    """The key with which a party signs what belongs to secure aggregation."""
    return Identity(identity.seed)


def signing_roster(pinned: PinnedRoster) -> Roster:
    """The roster as secure aggregation reads it: names and Ed25519 keys, in the order that numbers the nodes."""
    sites = tuple(Site(site.name, site.identity_key, pinned.max_rows_of(site.name)) for site in pinned.sites)
    return Roster(pinned.coordinator.identity_key, sites)
