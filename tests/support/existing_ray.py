"""A Ray cluster of loopback nodes that Rollcall did not start: `ray start`, once for each node."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import httpx
import psutil

from entrypoint.commands.demo import inherited
from entrypoint.net.port_block import PortBlock
from entrypoint.processes.process import Process, kill
from entrypoint.processes.programs import beside_interpreter

PORTS_PER_NODE = 60
NODES = 4
"""As many as there are ports for."""


class ExistingRay:
    """Node 0 is Ray's head. Each node has a loopback address and a directory of its own."""

    def __init__(self, root: Path, token: str = "") -> None:
        self._ports = PortBlock(NODES * PORTS_PER_NODE)
        self._root = root
        self._env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
        self._directory = Path(tempfile.mkdtemp(prefix="ray-"))
        self.nodes: dict[int, Process] = {}

    @property
    def control_port(self) -> int:
        """A port that Ray's nodes leave to a supervisor beside them."""
        return self._ports.first + 2

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.2:{self._ports.first + 1}"

    def start(self, number: int) -> None:
        first = self._ports.first + number * PORTS_PER_NODE + 3
        gcs = f"127.0.0.2:{self._ports.first}"
        role = [f"--address={gcs}"]
        if number == 0:
            role = [
                *("--head", f"--port={self._ports.first}", "--dashboard-host=127.0.0.2"),
                *(f"--dashboard-port={self._ports.first + 1}", "--include-dashboard=true"),
                f"--ray-client-server-port={first + 6}",
            ]
        self.nodes[number] = Process(
            f"ray-{number}",
            [
                *(beside_interpreter("ray"), "start", *role, "--block", "--disable-usage-stats"),
                *("--num-cpus=2", "--num-gpus=0", f"--node-ip-address=127.0.0.{2 + number}"),
                *(f"--temp-dir={self._directory / str(number)}",),
                *(f"--node-manager-port={first}", f"--object-manager-port={first + 1}"),
                *(f"--dashboard-agent-grpc-port={first + 2}",),
                *(f"--dashboard-agent-listen-port={first + 3}",),
                *(f"--metrics-export-port={first + 4}", f"--runtime-env-agent-port={first + 5}"),
                *(f"--min-worker-port={first + 7}", f"--max-worker-port={first + 56}"),
            ],
            env=inherited() | self._env | {"AUTOSCALER_METRIC_PORT": "0", "OMP_NUM_THREADS": "1"},
            log_to=self._root / f"ray-{number}.log",
        )

    def kill(self, number: int) -> None:
        """SIGKILL to all processes of the node at once."""
        parent = psutil.Process(self.nodes[number].pid)
        kill([parent, *parent.children(recursive=True)])
        self.nodes.pop(number).wait(10)

    def alive(self) -> int:
        """How many nodes Ray lists as alive."""
        answer = httpx.get(f"{self.dashboard}/api/v0/nodes", timeout=10, headers=self._headers)
        rows = answer.raise_for_status().json()["data"]["result"]["result"]
        return sum(row["state"] == "ALIVE" for row in rows)

    def running_jobs(self) -> list[str]:
        rows = httpx.get(f"{self.dashboard}/api/jobs/", timeout=10, headers=self._headers).json()
        return [row["submission_id"] for row in rows if row["status"] in ("PENDING", "RUNNING")]

    def close(self) -> None:
        for number in [*self.nodes]:
            self.kill(number)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._ports.close()

    @property
    def _headers(self) -> dict[str, str]:
        token = self._env.get("RAY_AUTH_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def log(self, number: int) -> str:
        return (self._root / f"ray-{number}.log").read_text()[-2000:]


def environment(ray: ExistingRay, run: Path, **more: str) -> dict[str, str]:
    """The variables of a supervisor beside this Ray."""
    return (
        inherited()
        | {
            "ROLLCALL_RAY_ADDRESS": ray.dashboard,
            "ROLLCALL_RUN_DIR": str(run),
            "ROLLCALL_RECIPE": "command",
            "ROLLCALL_CONTROL_PORT": str(ray.control_port),
            "ROLLCALL_NODE_NAME": f"supervisor-{os.getpid()}",
            "ROLLCALL_GRACE_SECONDS": "5",
            "EXPECTED_WORKERS": "1",
        }
        | more
    )
