"""Declares every setting once: a field with its variable, parser, default and meaning.

The reader of the environment and the table in docs/reference.md are made from these declarations.
"""

# ruff: noqa: RUF009 - `variable` declares a field, as `dataclasses.field` does
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from contract.options import boolean
from contract.redaction import redact, secret_texts
from entrypoint.config import job_parsers, runtime_env
from entrypoint.config import parsers as parse
from entrypoint.config.parsers import DebugRay, LogFormat, PortRange, PreflightMode, ServiceOn
from entrypoint.config.platforms.facts import Facts
from entrypoint.config.recipes import RECIPES
from entrypoint.config.variables import Secret, Variable, variable

__all__ = [
    "DebugRay",
    "LogFormat",
    "PortRange",
    "PreflightMode",
    "Secret",
    "ServiceOn",
    "Settings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings of this node. Secrets are masked wherever they are printed."""

    environ: Mapping[str, str] = field(repr=False)
    """The whole environment, for children; secrets given by `…_FILE` are not in it."""
    platform: Facts
    """The facts from the platform's own variables."""

    ray_worker: bool | None = variable(
        "RAY_WORKER",
        boolean,
        "0: this node is the head; 1: it is a worker. Beats the platform's variables.",
        shown="head, or what the platform's rank says",
        replaces=("rank", "is_main", "processes"),
    )
    head_pod_id: str | None = variable(
        "HEAD_POD_ID",
        parse.host_label,
        "The head's RunPod id; its address is `<id>.runpod.internal`.",
        replaces=("head_address", "node_host"),
    )
    head_address: str | None = variable(
        "ROLLCALL_HEAD_ADDRESS",
        parse.host,
        "The head's host name, IPv4 or IPv6 address.",
        shown="from `HEAD_POD_ID` or the platform",
        replaces=("head_address", "node_host"),
    )
    ray_address: str | None = variable(
        "ROLLCALL_RAY_ADDRESS",
        parse.ray_dashboard,
        "The dashboard of an existing Ray cluster, `http://HOST:8265`: this node supervises the"
        " job there and starts no Ray.",
        replaces=("is_main",),
    )
    expected_workers: int | None = variable(
        "EXPECTED_WORKERS",
        parse.whole_number(0, 100_000),
        "How many workers the head waits for; 0 is a cluster of one node. With "
        "`ROLLCALL_RAY_ADDRESS`: nodes of Ray besides its head.",
        shown="1, or the platform's size − 1",
        replaces=("nodes",),
    )
    min_workers: int | None = variable(
        "ROLLCALL_MIN_WORKERS",
        parse.whole_number(0, 100_000),
        "The fewest workers with which the run may start at the deadline, or continue after a"
        " loss.",
        shown="`EXPECTED_WORKERS`",
    )
    replace_timeout: float = variable(
        "ROLLCALL_REPLACE_TIMEOUT",
        parse.duration,
        "How long to wait for a lost worker before the run continues with fewer.",
        default=300.0,
        shown="5m",
    )
    debug_ray: DebugRay = variable(
        "DEBUG_RAY",
        parse.debug_ray,
        "1: Ray's legacy debugger (`ray debug`), reachable from outside; `post-mortem`: a "
        "failed task waits for debugpy. Neither asks for the token.",
        default=DebugRay.OFF,
        shown="0",
    )
    wandb_api_key: Secret | None = variable(
        "WANDB_API_KEY",
        parse.secret,
        "If set, log to Weights & Biases.",
        secret=True,
    )
    recipe: str = variable(
        "ROLLCALL_RECIPE",
        parse.recipe,
        f"What is launched: {parse.one_of(RECIPES)}.",
        default="builtin",
    )
    job: tuple[str, ...] = variable(
        "ROLLCALL_JOB",
        parse.arguments,
        "The job's arguments, quoted as in a shell; what follows the image's name does the same.",
        default=(),
        shown="–",
    )
    waits_for_jobs: bool = variable(
        "ROLLCALL_WAIT_FOR_JOBS",
        boolean,
        "1: the head waits for jobs of `rollcall submit`, as with `up --wait-for-jobs`.",
        default=False,
        shown="0",
    )
    runtime_env: dict[str, Any] = variable(
        "ROLLCALL_RUNTIME_ENV",
        runtime_env.parsed,
        "Ray's runtime environment of a `command` or `torchrun` job, as JSON or YAML:"
        ' `{"pip": ["einops"], "env_vars": {"LEVEL": "2"}}`.',
        default={},
        shown="–",
        secret=True,
    )
    step_pattern: re.Pattern[str] | None = variable(
        "ROLLCALL_STEP_PATTERN", job_parsers.step_pattern, job_parsers.STEPS_MEANING
    )
    checkpoints: str | None = variable(
        "ROLLCALL_CHECKPOINTS", job_parsers.checkpoint_pattern, job_parsers.CHECKPOINTS_MEANING
    )
    resume_args: tuple[str, ...] = variable(
        *("ROLLCALL_RESUME_ARGS", job_parsers.resume_arguments, job_parsers.RESUME_MEANING),
        default=(),
        shown="–",
    )
    url: str | None = variable(
        "ROLLCALL_URL",
        parse.url,
        "Where commands find the head's control port from outside: `http://HOST:8267`, or a proxy's"
        " URL. On the head: the URL in the link that it prints.",
        shown="the head's address and `ROLLCALL_CONTROL_PORT`",
    )
    run_dir: Path = variable(
        "ROLLCALL_RUN_DIR",
        parse.absolute_path,
        "The run directory, on storage that all nodes share; see `ROLLCALL_STORAGE`.",
        default=Path("/checkpoints"),
    )
    storage: str = variable(
        "ROLLCALL_STORAGE",
        parse.storage,
        "Who has the run directory: `shared`: all nodes; `head`: the head, to which the others send"
        " what they save; `s3://BUCKET/PREFIX`: as `head`, with uploads of the checkpoints."
        " [Details](checkpoints.md#without-shared-storage).",
        default=parse.SHARED,
    )
    reward_url: str | None = variable(
        "ROLLCALL_REWARD_URL",
        parse.url,
        "The reward server's URL. The job starts when it answers.",
    )
    reward_command: tuple[str, ...] | None = variable(
        "ROLLCALL_REWARD_COMMAND",
        parse.arguments,
        "Command that starts the reward server. If unset, Rollcall waits for the URL.",
    )
    reward_on: ServiceOn = variable(
        "ROLLCALL_REWARD_ON",
        parse.choice(ServiceOn),
        "Which nodes start the reward server: `head` or `every`.",
        default=ServiceOn.HEAD,
    )
    retriever_url: str | None = variable(
        "ROLLCALL_RETRIEVER_URL",
        parse.url,
        "The retrieval server's URL. The job starts when it answers.",
    )
    retriever_command: tuple[str, ...] | None = variable(
        "ROLLCALL_RETRIEVER_COMMAND",
        parse.arguments,
        "Command that starts the retrieval server on every node where this is set.",
    )
    retriever_on: ServiceOn = variable(
        "ROLLCALL_RETRIEVER_ON",
        parse.choice(ServiceOn),
        "Which nodes start the retrieval server: `head` or `every`.",
        default=ServiceOn.EVERY,
    )
    service_timeout: float = variable(
        "ROLLCALL_REWARD_TIMEOUT",
        parse.duration,
        "How long to wait for a service to answer.",
        default=600.0,
        shown="10m",
    )
    max_restarts: int = variable(
        "ROLLCALL_MAX_RESTARTS",
        parse.whole_number(0),
        "Allowed restarts in a row without new progress; progress renews the budget.",
        default=3,
    )
    hang_timeout: float | None = variable(
        "ROLLCALL_HANG_TIMEOUT",
        parse.duration,
        "The job is hung if no step ends for this long; a `command` without steps, if its log is"
        " silent for this long. [Details](recovery.md#a-hang).",
        shown="learned from step times, at least 10m; none for a `command` without steps, or with "
        "`DEBUG_RAY`",
    )
    head_timeout: float = variable(
        "ROLLCALL_HEAD_TIMEOUT",
        parse.duration,
        "How long a worker waits for the head.",
        default=600.0,
        shown="10m",
    )
    roll_timeout: float = variable(
        "ROLLCALL_ROLL_TIMEOUT",
        parse.duration,
        "How long the head waits for its workers.",
        default=1800.0,
        shown="30m",
    )
    preflight: PreflightMode = variable(
        "ROLLCALL_PREFLIGHT",
        parse.choice(PreflightMode),
        "`strict`: a failed check stops the node; `warn`: it is only shown; `off`: no check runs.",
        default=PreflightMode.STRICT,
    )
    preflight_skip: frozenset[str] = variable(
        "ROLLCALL_PREFLIGHT_SKIP",
        parse.names,
        "Names of checks to skip, separated by commas: `host.shm,host.clock`.",
        default=frozenset(),
        shown="–",
    )
    resources: dict[str, float] = variable(
        "ROLLCALL_RESOURCES",
        parse.resources,
        'Custom Ray resources of this node as JSON: `{"v100": 8}`.',
        default={},
        shown="–",
    )
    ray_port: int = variable(
        "ROLLCALL_RAY_PORT", parse.port, "The head's Ray port (GCS).", default=6379
    )
    dashboard_port: int = variable(
        "ROLLCALL_DASHBOARD_PORT", parse.port, "The head's Ray dashboard and job API.", default=8265
    )
    control_port: int = variable(
        "ROLLCALL_CONTROL_PORT",
        parse.port,
        "The head's roll call, state, metrics and page.",
        default=8267,
    )
    worker_ports: PortRange = variable(
        "ROLLCALL_WORKER_PORTS",
        parse.port_range,
        "The ports of Ray's worker processes, on every node.",
        default=PortRange(10002, 10999),
    )
    token: Secret | None = variable(
        "ROLLCALL_TOKEN",
        parse.token,
        "The cluster's one secret, for Ray and the control port; at least "
        f"{parse.SHORTEST_TOKEN} characters.",
        shown="the head makes one in the run directory",
        secret=True,
    )
    node_name: str = variable(
        "ROLLCALL_NODE_NAME",
        parse.node_name,
        "This node's name in the roll and in its log file's name. A second node on one "
        "machine needs a name and a `ROLLCALL_RAY_TEMP_DIR` of its own.",
        shown="the platform's, else the host name",
        replaces=("node_name",),
    )
    node_address: str | None = variable(
        "ROLLCALL_NODE_ADDRESS",
        parse.host,
        "This node's own address.",
        shown="the platform's, else the source address of the route to the head",
        replaces=("node_address",),
    )
    num_cpus: int | None = variable(
        "ROLLCALL_NUM_CPUS", parse.whole_number(0), "CPUs to offer to Ray.", shown="all usable"
    )
    num_gpus: int | None = variable(
        "ROLLCALL_NUM_GPUS",
        parse.whole_number(0, 1024),
        "GPUs to offer to Ray.",
        shown="all that are visible",
        replaces=("gpus_per_node",),
    )
    gpu_memory: int | None = variable(
        "ROLLCALL_GPU_MEMORY",
        parse.size,
        "Memory of each GPU, such as `80GB`, for the choice of the layout.",
        shown="what the driver says",
    )
    ray_temp_dir: Path | None = variable(
        "ROLLCALL_RAY_TEMP_DIR", parse.ray_temp_dir, "Ray's own directory.", shown="/tmp/ray"
    )
    fork_server: bool = variable(
        *("ROLLCALL_FORK_SERVER", boolean, parse.FORK_SERVER_MEANING),
        default=False,
        shown="off",
    )
    grace_seconds: float = variable(
        "ROLLCALL_GRACE_SECONDS",
        parse.duration,
        "Time for a save after SIGTERM.",
        default=25.0,
        shown="25s",
    )
    preempt_file: Path | None = variable(
        "ROLLCALL_PREEMPT_FILE",
        parse.absolute_path,
        "When this file appears, act as on SIGTERM: the machine will be taken away.",
    )
    node_timeout: float = variable(
        "ROLLCALL_NODE_TIMEOUT",
        parse.duration,
        "A node that is silent for this long counts as lost.",
        default=15.0,
        shown="15s",
    )
    log: LogFormat = variable(
        *("ROLLCALL_LOG", parse.choice(LogFormat), parse.LOG_MEANING), default=LogFormat.TEXT
    )
    webhook: Secret | None = variable(
        "ROLLCALL_WEBHOOK", parse.webhook, parse.WEBHOOK_MEANING, secret=True
    )
    image: str | None = variable(
        "ROLLCALL_IMAGE",
        str,
        "The image's digest; the head refuses a node with another one.",
        shown="computed from source and locks when the image is built",
    )

    def __repr__(self) -> str:
        shown = (setting.name for setting in fields(self) if setting.repr)
        values = (f"{name}={getattr(self, name)!r}" for name in shown)
        return redact(f"Settings({', '.join(values)})", self.secrets)

    @property
    def secrets(self) -> frozenset[str]:
        """The texts that no message and no page may show."""
        own = (self.wandb_api_key, self.token, self.webhook)
        given = (secret.reveal() for secret in own if secret)
        of_job = secret_texts(self.runtime_env.get("env_vars", {}))
        return secret_texts(self.environ) | of_job | frozenset(given)

    @property
    def shares_run_dir(self) -> bool:
        return self.storage == parse.SHARED

    @property
    def store(self) -> str | None:
        """The URL of the store to which checkpoints are uploaded."""
        return self.storage if "://" in self.storage else None

    @property
    def ray_dir(self) -> Path:
        """Ray's directory on this node: ROLLCALL_RAY_TEMP_DIR, else Ray's default."""
        parent = self.environ.get("RAY_TMPDIR") or self.environ.get("TMPDIR") or "/tmp"
        return self.ray_temp_dir or Path(parent).absolute() / "ray"

    @property
    def node_mark(self) -> str:
        """The mark of this node's processes, which another node on the machine does not have."""
        return f"{self.node_name}@{self.ray_dir}"

    def variable(self, name: str) -> str | None:
        """The variable that gave the field `name`; None if it has its default."""
        names = dict(declared())[name].names
        return next((given for given in names if self.environ.get(given, "").strip()), None)


def declared() -> Iterator[tuple[str, Variable]]:
    """Each field's name and its variable, in the order of declaration."""
    for setting in fields(Settings):
        if "variable" in setting.metadata:
            yield setting.name, setting.metadata["variable"]
