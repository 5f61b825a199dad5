"""Federations that are set up in one place: all of a simulation's, and the keys of Flower's own processes.

A simulation has keys, policies and rows of the shipped study for as many sites as Flower has nodes. The rows are
public, so everything may lie in one folder; the parties' code is the one of every run.
"""

from __future__ import annotations

import ipaddress
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from hedgerow.data.datasets import load_rand_hie, rand_hie_plan_text
from hedgerow.errors import UsageError
from hedgerow.flower.coordinator import coordinate
from hedgerow.flower.files import read_coordinator_file
from hedgerow.flower.hub import Patience, Post
from hedgerow.transport.identities import Role, build_roster, create_identity

if TYPE_CHECKING:
    from flwr.serverapp import Grid

SMALLEST_COHORT = 3
_POLICY = 'version = 1\ndata_set = "{name}"\nmax_epsilon = 3.0\ndelta = 1e-5\nmin_sites = {n_sites}\n'
_POLICY += 'noise = ["server"]\n'
_SITE = """\
version = 1
data = "rows.csv"
identity = "{name}.private.json"
roster = "../roster.toml"
policy = "policy.toml"
plan = "../plan.toml"
state = "state"
threads = 1
"""
_COORDINATOR = """\
version = 1
plan = "plan.toml"
roster = "roster.toml"
identity = "coordinator.private.json"
out = "model.json"
"""
_PATIENCE = Patience(poll=0.05, repeat=600.0, longest_repeat=3600.0)
_JOINING_SECONDS = 120.0


def simulate(grid: Grid, post: Post, folder: Path, config: Mapping[str, object]) -> None:
    """Make a federation of all nodes of a simulation in `folder`, run it, and leave the model there.

    Args:
        grid: what Flower gives a ServerApp.
        post: the same as the coordinator's hub takes it.
        folder: where the files of all parties go.
        config: the run's configuration: "trees", "batch" and "depth" of the plan.
    """
    nodes = wait_for_nodes(grid)
    model = {name: int(str(config.get(key, default))) for name, key, default in _MODEL}
    make_federation(folder, len(nodes), model)
    began = time.monotonic()
    trained, hub = coordinate(read_coordinator_file(folder / "coordinator.toml"), post, _PATIENCE)
    print(
        f"simulation: {len(nodes)} nodes, {trained.ensemble.n_trees} trees, {max(hub.n_requests.values())} exchanges, "
        f"{time.monotonic() - began:.0f} s.",
        file=sys.stderr,
        flush=True,
    )


_MODEL = (("n_trees", "trees", 100), ("batch_size", "batch", 25), ("max_depth", "depth", 4))


def wait_for_nodes(grid: Grid, sleep: Callable[[float], None] = time.sleep) -> list[int]:
    """All nodes of a simulation, when their number does not grow any more; raises UsageError for fewer than three."""
    deadline, before = time.monotonic() + _JOINING_SECONDS, -1
    while time.monotonic() < deadline:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) == before and len(nodes) >= SMALLEST_COHORT:
            return nodes
        before = len(nodes)
        sleep(1.0)
    raise UsageError("simulation-too-small", n_nodes=max(before, 0), least=SMALLEST_COHORT)


def make_federation(folder: Path, n_sites: int, model: Mapping[str, int]) -> None:
    """Write the files of all parties; raises UsageError when the folder holds a federation already."""
    if (folder / "roster.toml").exists():
        raise UsageError("simulation-folder", folder=folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    coordinator, _, _ = create_identity(folder, "coordinator", Role.COORDINATOR)
    columns = load_rand_hie()
    owner = np.random.default_rng(0).permutation(len(columns["site"])) % n_sites
    sites = []
    for number in range(n_sites):
        place, name = file_of_partition(folder, number).parent, f"site-{number}"
        place.mkdir(mode=0o700)
        sites.append(create_identity(place, name, Role.SITE)[0].public)
        rows = pa.table({name: values[owner == number] for name, values in columns.items()})
        arrow_csv.write_csv(rows, place / "rows.csv")
        (place / "policy.toml").write_text(_POLICY.format(name=name, n_sites=SMALLEST_COHORT), encoding="utf-8")
        (place / "site.toml").write_text(_SITE.format(name=name), encoding="utf-8")
    (folder / "plan.toml").write_text(_plan(n_sites, model), encoding="utf-8")
    (folder / "coordinator.toml").write_text(_COORDINATOR, encoding="utf-8")
    (folder / "roster.toml").write_text(build_roster(coordinator.public, sites).to_toml(), encoding="utf-8")


def file_of_partition(folder: Path, number: int) -> Path:
    """The site's file of one partition."""
    return folder / f"site-{number}" / "site.toml"


def _plan(n_sites: int, model: Mapping[str, int]) -> str:
    """The demonstration's plan for all rows, for so many sites, with patience for so many nodes on one machine."""
    text = rand_hie_plan_text()
    federation = f"min_sites = {max(SMALLEST_COHORT, n_sites * 2 // 3)}\njoin_timeout = 3600\nround_timeout = 1800"
    for old, new in (("n_records = 14133", "n_records = 20190"), ("min_sites = 6", federation)):
        if text.count(old) != 1:
            raise UsageError("demonstration-plan", old=old)
        text = text.replace(old, new)
    return text + "\n[model]\n" + "".join(f"{name} = {value}\n" for name, value in model.items())


def make_node_key(folder: Path, name: str) -> None:
    """A SuperNode's key in the form that `ssh-keygen -t ecdsa -b 384` gives it: `name` and `name.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = folder / name
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    private.chmod(0o600)
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def make_certificates(folder: Path, host: str = "localhost", days: int = 1) -> None:
    """A certificate authority and a certificate of `host` and 127.0.0.1: ca.pem, server.pem, server.key."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hedgerow")])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName(host)])
    is_ca = x509.BasicConstraints(ca=True, path_length=None)
    for file, subject, key, extension in (("ca", ca, authority, is_ca), ("server", own, server, names)):
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        builder = builder.not_valid_after(now + timedelta(days=days)).add_extension(extension, critical=file == "ca")
        certificate = builder.sign(authority, hashes.SHA256())
        (folder / f"{file}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").touch(0o600)
    (folder / "server.key").write_bytes(secret)
