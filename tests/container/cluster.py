"""A cluster of containers: each node is the built image, on a network where names resolve."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from contract.run_dir import RunFiles
from tests.support.podman import IMAGE, OF_THE_IMAGE, Container, podman
from tests.support.watch import Watch

HEAD_POD_ID = "abc123"
REWARD_URL = "http://reward:5000/get_reward"
LINES_SHOWN = 40

# A step of the tiny model takes a tenth of a second.
JOB = (
    *("--pretrain", "/data/model", "--prompt_data", "/data/train.jsonl"),
    *("--input_key", "prompt", "--label_key", "answer", "--generate_max_len", "4"),
    *("--rollout_batch_size", "8", "--train_batch_size", "8", "--micro_train_batch_size", "8"),
)
SHORT = (*JOB, "--max_steps", "10", "--save_steps", "5")
ENDLESS = (*JOB, "--num_episodes", "100000", "--save_steps", "10", "--max_ckpt_num", "2")


class Cluster:
    """Containers, network and run directory of one run; leaving the `with` block removes them."""

    volumes: Sequence[str] = ()
    """More of each container, as podman has them."""
    options: Sequence[str] = ()
    """More of `podman run` for each container."""
    user = ""
    """Of each container; the image's if empty."""
    stands_by = False
    """Whether nodes hold standby ranks: each costs the imports of one, and most runs lose none."""

    def __init__(self, root: Path, data: Path, *, memory: str = "4g") -> None:
        """`memory`: of each container."""
        self.root, self.data, self.memory = root, data, memory
        self.run = RunFiles(root / "run")
        self.run.root.mkdir(parents=True)
        if not self.user:
            os.chown(self.run.root, *OF_THE_IMAGE)
        self.watch = Watch(self.run, self.report)
        self.name = f"rollcall-{uuid.uuid4().hex[:8]}"
        self.nodes: dict[str, Container] = {}

    def __enter__(self) -> Self:
        podman("network", "create", self.name)
        return self

    def __exit__(self, *_: object) -> None:
        for container in self.nodes.values():
            (self.root / f"{container.name}.log").write_text(container.said)
            container.remove()
        podman("network", "rm", "--force", self.name, check=False)

    def head(self, *job: str, workers: int = 2, **env: str) -> Container:
        alias = f"{HEAD_POD_ID}.runpod.internal"
        env = {"EXPECTED_WORKERS": str(workers), **env}
        return self._start("head", env, "--", *job, alias=alias)

    def worker(self, number: int, *, image: str = IMAGE, **env: str) -> Container:
        env = {"RAY_WORKER": "1", "HEAD_POD_ID": HEAD_POD_ID, **env}
        return self._start(f"worker-{number}", env, image=image)

    def reward_server(self, *, after: int = 0) -> Container:
        """It starts after so many seconds, and says when: in seconds of the epoch."""
        serve = "exec env ROLLCALL_INSECURE=1 python -m env.server --task arithmetic --port 5000"
        words = ("bash", "-c", f"sleep {after}; date +%s; {serve}")
        return self._start("reward", {}, *words, alias="reward")

    def exit_codes(self, *, within: float) -> dict[str, int]:
        """Of head and workers, once all have ended; `within` is for each of them."""
        nodes = {name: node for name, node in self.nodes.items() if name != "reward"}
        return {name: node.exit_code(within=within) for name, node in nodes.items()}

    def report(self) -> str:
        """The end of every console and of the newest attempt's log, for a failed test."""
        texts = {name: node.said for name, node in self.nodes.items()}
        if attempts := sorted(self.run.logs.glob("attempt-*.log")):
            texts[attempts[-1].name] = attempts[-1].read_text()
        tails = {name: text.splitlines()[-LINES_SHOWN:] for name, text in texts.items()}
        return "\n".join(f"--- {name}\n" + "\n".join(tail) for name, tail in tails.items())

    def _start(
        self,
        node: str,
        env: Mapping[str, str],
        *words: str,
        image: str = IMAGE,
        alias: str | None = None,
    ) -> Container:
        options = [
            f"--hostname={node}",
            f"--network={self.name}",
            "--shm-size=512m",
            f"--memory={self.memory}",
            "--pids-limit=-1",
            f"--volume={self.run.root}:/checkpoints",
            f"--volume={self.data}:/data:ro",
            *(f"--volume={volume}" for volume in self.volumes),
            *self.options,
            f"--env=ROLLCALL_STANDBY_RANKS={int(self.stands_by)}",
            *(f"--env={name}={value}" for name, value in env.items()),
        ]
        if self.user:
            options.append(f"--user={self.user}")
        if alias:
            options.append(f"--network-alias={alias}")
        self.nodes[node] = Container.start(f"{self.name}-{node}", *options, image, *words)
        return self.nodes[node]
