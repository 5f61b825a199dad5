"""Flower's send and receive on this machine, for comparison: clients give back as many bytes as they are sent.

Run by an interpreter that has flwr; imports nothing of this package, so that the interpreter needs nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = """Flower is not installed in this interpreter. To have it measured beside:
  python -m venv flower && flower/bin/pip install flwr numpy
  python -m experiments network --flower-python flower/bin/python"""
_SERVER = """
import sys, time
import flwr as fl
import numpy as np

n_nodes, n_rounds, size, port = map(int, sys.argv[1:])
begun = []


class Timed(fl.server.strategy.FedAvg):
    def configure_fit(self, server_round, parameters, client_manager):
        begun.append(time.perf_counter())
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        assert not failures, failures
        return super().aggregate_fit(server_round, results, failures)

    def evaluate(self, server_round, parameters):
        return None


start = fl.common.ndarrays_to_parameters([np.zeros(size, dtype=np.uint8)])
strategy = Timed(
    fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=n_nodes, min_available_clients=n_nodes,
    initial_parameters=start,
)
config = fl.server.ServerConfig(num_rounds=n_rounds)
cpu = time.process_time()
fl.server.start_server(server_address=f"127.0.0.1:{port}", config=config, strategy=strategy)
seconds = np.diff(begun) * 1000
print("RESULT", fl.__version__, len(seconds), *np.quantile(seconds, [0.5, 0.99]), time.process_time() - cpu)
"""
_CLIENT = """
import sys
import flwr as fl


class Echo(fl.client.NumPyClient):
    def fit(self, parameters, config):
        return parameters, 1, {}


fl.client.start_client(server_address=f"127.0.0.1:{sys.argv[1]}", client=Echo().to_client())
"""
_PATIENCE = 120.0


def has_flower(python: str) -> bool:
    """Whether an interpreter has flwr."""
    return subprocess.run([python, "-c", "import flwr"], capture_output=True, check=False).returncode == 0


def measure_flower(python: str, n_nodes: int, n_rounds: int, size: int, port: int) -> str:
    """One line on Flower's exchange with all nodes, without TLS, masks or journals; says why when there is none."""
    with tempfile.TemporaryDirectory() as name:
        server, client = Path(name) / "server.py", Path(name) / "client.py"
        server.write_text(_SERVER, encoding="utf-8")
        client.write_text(_CLIENT, encoding="utf-8")
        words = [str(word) for word in (n_nodes, n_rounds, size, port)]
        hub = subprocess.Popen([python, str(server), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1.0)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        clients = [subprocess.Popen([python, str(client), str(port)], **quiet) for _ in range(n_nodes)]  # type: ignore[call-overload]
        try:
            said, complaints = hub.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return f"Flower did not finish within {_PATIENCE:.0f} s."
        finally:
            for process in (hub, *clients):
                if process.poll() is None:
                    process.kill()
                process.wait()
    line = next((line for line in said.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        return f"Flower failed: {complaints.strip().splitlines()[-1] if complaints.strip() else 'nothing was said'}"
    _, version, n_measured, median, late, cpu = line.split()
    return (
        f"Flower {version}, {n_nodes} clients, {size:,} bytes, plain text: median {float(median):.1f} ms, "
        f"99 % {float(late):.1f} ms over {n_measured} rounds; processor time of the server {float(cpu):.2f} s"
    )


def interpreter(given: str | None) -> str | None:
    """The interpreter with flwr: the given one, or this one; None when neither has it."""
    python = given or sys.executable
    return python if has_flower(python) else None
