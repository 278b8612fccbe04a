"""Declares every setting once: a field with its variable, parser, default and meaning.

The reader of the environment and the table in docs/reference.md are made from these declarations.
"""

# ruff: noqa: RUF009 - `variable` declares a field, as `dataclasses.field` does
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from contract.durations import duration
from contract.files import ray_home
from contract.launch.command_lines import variables_before
from contract.options import Declared, declared_in
from contract.redaction import redact, secret_texts
from entrypoint.config import durations, job_parsers, runtime_env
from entrypoint.config import parsers as parse
from entrypoint.config.parsers import (
    DebugRay,
    LogFormat,
    PortRange,
    PreflightMode,
    ServiceOn,
    Stragglers,
    Tls,
)
from entrypoint.config.platforms.facts import Facts
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.variables import Secret, Variable, variable

__all__ = [
    "DebugRay",
    "LogFormat",
    "PortRange",
    "PreflightMode",
    "Secret",
    "ServiceOn",
    "Settings",
    "Stragglers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings of this node. Secrets are masked wherever they are printed."""

    environ: Mapping[str, str] = field(repr=False)
    """The whole environment, for children; secrets given by `…_FILE` are not in it."""
    platform: Facts
    """The facts from the platform's own variables."""
    around_job: tuple[str, ...] = ()
    """Words around the job's command that have no effect, such as `nohup` or `2>&1 | tee log`."""

    ray_worker: bool | None = variable(
        "RAY_WORKER",
        "0: this node is the head; 1: it is a worker. Overrides the platform's variables.",
        shown="head, or what the platform's rank says",
        replaces=("rank", "is_main", "processes"),
    )
    head_pod_id: str | None = variable(
        "HEAD_POD_ID",
        "The head's RunPod id; its address is `<id>.runpod.internal`.",
        parse=parse.host_label,
        replaces=("head_address", "node_host"),
    )
    head_address: str | None = variable(
        "ROLLCALL_HEAD_ADDRESS",
        "The head's host name, IPv4 or IPv6 address.",
        parse=parse.host,
        shown="from `HEAD_POD_ID` or the platform",
        replaces=("head_address", "node_host"),
    )
    ray_address: str | None = variable(
        "ROLLCALL_RAY_ADDRESS",
        "The dashboard of an existing Ray cluster, `http://HOST:8265`: this node supervises the"
        " job there and starts no Ray.",
        parse=parse.ray_dashboard,
        replaces=("is_main",),
    )
    expected_workers: int | None = variable(
        "EXPECTED_WORKERS",
        "How many workers the head waits for; 0 is a cluster of one node. With "
        "`ROLLCALL_RAY_ADDRESS`: nodes of Ray besides its head.",
        at_least=0,
        at_most=100_000,
        shown="1, or the platform's size − 1",
        replaces=("nodes",),
    )
    min_workers: int | None = variable(
        "ROLLCALL_MIN_WORKERS",
        "The fewest workers with which the run may start at the deadline, or continue after a"
        " loss.",
        at_least=0,
        at_most=100_000,
        shown="`EXPECTED_WORKERS`",
    )
    replace_timeout: float = variable(
        "ROLLCALL_REPLACE_TIMEOUT",
        "How long to wait for a lost worker before the run continues with fewer.",
        default=300.0,
    )
    spare_workers: int = variable(
        "ROLLCALL_SPARE_WORKERS",
        "How many nodes join as [spares](recovery.md#spares), without work, to replace lost"
        " workers. The platform's number of nodes includes them.",
        at_least=0,
        at_most=100_000,
        default=0,
    )
    spare_check_seconds: float = variable(
        "ROLLCALL_SPARE_CHECK_SECONDS",
        "How long an idle spare with GPUs waits before it runs the check `gpu.burn` again.",
        at_least=60,
        default=1800.0,
    )
    replace_command: tuple[str, ...] | None = variable(
        "ROLLCALL_REPLACE_COMMAND",
        "A program on the head that [starts another node](recovery.md#a-node-that-is-needed) for a"
        " lost one. `{node}`, `{rank}`, `{address}` and `{reason}` are the lost node's.",
        parse=parse.arguments,
    )
    head_failover: float = variable(
        "ROLLCALL_HEAD_FAILOVER",
        "How long a lost head has to come back before a worker [takes its place]"
        "(head-failover.md#a-head-that-is-lost), on a shared run directory. `auto`: "
        f"{duration(durations.SHORTEST_FAILOVER)}. `off`: the run waits for the head.",
        parse=durations.head_failover,
        at_least=durations.SHORTEST_FAILOVER,
        default=120.0,
    )
    stragglers: Stragglers = variable(
        "ROLLCALL_STRAGGLERS",
        "`warn`: report [slow ranks](faulty-machines.md#slow-ranks). `replace`: also replace their"
        " node by a spare. `off`: do not compare ranks.",
        default=Stragglers.WARN,
    )
    debug_ray: DebugRay = variable(
        "DEBUG_RAY",
        "1: Ray's legacy debugger (`ray debug`), reachable from outside; `post-mortem`: a "
        "failed task waits for debugpy. Both debuggers are open without a token.",
        parse=parse.debug_ray,
        default=DebugRay.OFF,
        shown="0",
    )
    wandb_api_key: Secret | None = variable(
        "WANDB_API_KEY", "If set, log to Weights & Biases.", parse=parse.secret, secret=True
    )
    recipe: str = variable(
        "ROLLCALL_RECIPE",
        f"How the job is launched: {parse.one_of(RECIPES)}.",
        parse=parse.recipe,
        default="builtin",
    )
    job: tuple[str, ...] = variable(
        "ROLLCALL_JOB",
        "The job's arguments, quoted as in a shell; the same as words after the image's name.",
        parse=parse.arguments,
        default=(),
    )
    waits_for_jobs: bool = variable(
        "ROLLCALL_WAIT_FOR_JOBS",
        "1: the head waits for jobs of `rollcall submit`, as with `up --wait-for-jobs`.",
        default=False,
    )
    runtime_env: dict[str, Any] = variable(
        "ROLLCALL_RUNTIME_ENV",
        "Ray's runtime environment of a `command` or `torchrun` job, as JSON or YAML:"
        ' `{"pip": ["einops"], "env_vars": {"LEVEL": "2"}}`.',
        parse=runtime_env.parsed,
        default={},
        secret=True,
    )
    name: str = variable(
        "ROLLCALL_NAME",
        "The run's name on its page, in the report and in lists; the same as `--name`. Also in"
        " W&B, unless the job sets `WANDB_NAME`.",
        parse=parse.run_name,
        default="",
        shown="the run directory's name; above `run`, its parent's",
    )
    check_code: bool = variable(
        "ROLLCALL_CHECK_CODE", "0: `plan` and `up` do not test the user's code.", default=True
    )
    step_pattern: re.Pattern[str] | None = variable(
        "ROLLCALL_STEP_PATTERN",
        "A step in the log of a `command` or `torchrun` job: a regular expression with groups, "
        r"such as `step (?P<step>\d+)/(?P<total_steps>\d+)`. [Details](recipes/command.md).",
        parse=job_parsers.step_pattern,
    )
    checkpoints: str | None = variable(
        "ROLLCALL_CHECKPOINTS",
        "The checkpoints of a `command` or `torchrun` job: the path of a file that each complete "
        "one has, with `{step}`: `out/checkpoint-{step}/trainer_state.json`. Absolute, or below"
        " the run directory.",
        parse=job_parsers.checkpoint_pattern,
    )
    resume_args: tuple[str, ...] = variable(
        "ROLLCALL_RESUME_ARGS",
        "Arguments that are added to a `command` or `torchrun` job when there is a checkpoint. "
        "`{checkpoint}` is its path, `{step}` its step.",
        parse=job_parsers.resume_arguments,
        default=(),
    )
    urls: tuple[str, ...] = variable(
        "ROLLCALL_URL",
        "The URL of the head's control port for commands: `http://HOST:8267`, or a proxy's. After"
        " commas: [other nodes'](head-failover.md#addresses-after-a-takeover). On the head: the URL"
        " in the link that it prints.",
        parse=parse.urls,
        default=(),
        shown="the head's address and `ROLLCALL_CONTROL_PORT`",
    )
    run_dir: Path = variable(
        "ROLLCALL_RUN_DIR",
        "The run directory, on storage that all nodes share; see `ROLLCALL_STORAGE`.",
        parse=parse.run_dir,
        default=Path("/checkpoints"),
    )
    storage: str = variable(
        "ROLLCALL_STORAGE",
        "Where the run directory is. `shared`: on shared storage. `head`: on the head's disk."
        " `s3://BUCKET/PREFIX`: as `head`, with uploads of the checkpoints."
        " [Details](checkpoints.md#without-shared-storage).",
        parse=parse.storage,
        default=parse.SHARED,
    )
    reward_url: str | None = variable(
        "ROLLCALL_REWARD_URL",
        "The reward server's URL. The job starts when it answers.",
        parse=parse.url,
    )
    reward_command: tuple[str, ...] | None = variable(
        "ROLLCALL_REWARD_COMMAND",
        "Command that starts the reward server. If unset, Rollcall waits for the URL.",
        parse=parse.arguments,
    )
    reward_on: ServiceOn = variable(
        "ROLLCALL_REWARD_ON",
        "Which nodes start the reward server: `head` or `every`.",
        default=ServiceOn.HEAD,
    )
    retriever_url: str | None = variable(
        "ROLLCALL_RETRIEVER_URL",
        "The retrieval server's URL. The job starts when it answers.",
        parse=parse.url,
    )
    retriever_command: tuple[str, ...] | None = variable(
        "ROLLCALL_RETRIEVER_COMMAND",
        "Command that starts the retrieval server on every node where this is set.",
        parse=parse.arguments,
    )
    retriever_on: ServiceOn = variable(
        "ROLLCALL_RETRIEVER_ON",
        "Which nodes start the retrieval server: `head` or `every`.",
        default=ServiceOn.EVERY,
    )
    service_key: Secret | None = variable(
        "ROLLCALL_SERVICE_KEY",
        "The key that reward and retrieval servers ask for; at least "
        f"{parse.SHORTEST_TOKEN} characters. The job's clients send it.",
        parse=parse.token,
        shown="derived from the token",
        secret=True,
    )
    insecure: bool = variable(
        "ROLLCALL_INSECURE",
        "1: reward and retrieval servers that are started with it need no"
        " [key](reward-servers.md#who-may-ask-a-server). The control port and Ray still need"
        " theirs.",
        default=False,
    )
    service_timeout: float = variable(
        "ROLLCALL_REWARD_TIMEOUT",
        "How long to wait for a service to answer.",
        default=600.0,
    )
    max_restarts: int = variable(
        "ROLLCALL_MAX_RESTARTS",
        "Allowed restarts in a row without new progress; progress renews the budget.",
        at_least=0,
        default=3,
    )
    hang_timeout: float | None = variable(
        "ROLLCALL_HANG_TIMEOUT",
        "The job hangs if no step ends for this long. For a `command` without steps, it is how"
        " long its log may be silent. [Details](recovery.md#a-hang).",
        at_least=5,
        shown=f"learned from step times, at least {durations.as_setting(durations.SHORTEST_HANG)}; "
        "none for a `command` without steps, or with `DEBUG_RAY`",
    )
    head_timeout: float = variable(
        "ROLLCALL_HEAD_TIMEOUT",
        "How long a worker waits for the head.",
        default=600.0,
    )
    roll_timeout: float = variable(
        "ROLLCALL_ROLL_TIMEOUT",
        "How long the head waits for its workers.",
        default=1800.0,
    )
    preflight: PreflightMode = variable(
        "ROLLCALL_PREFLIGHT",
        "`strict`: a failed check stops the node; `warn`: it is only shown; `off`: no check runs.",
        default=PreflightMode.STRICT,
    )
    preflight_skip: frozenset[str] = variable(
        "ROLLCALL_PREFLIGHT_SKIP",
        "Names of checks to skip, separated by commas: `host.shm,host.clock`.",
        parse=parse.names,
        default=frozenset(),
    )
    resources: dict[str, float] = variable(
        "ROLLCALL_RESOURCES",
        'Custom Ray resources of this node as JSON: `{"v100": 8}`.',
        parse=parse.resources,
        default={},
    )
    ray_port: int = variable(
        "ROLLCALL_RAY_PORT",
        "The head's Ray port (GCS).",
        at_least=1,
        at_most=parse.LAST_PORT,
        default=6379,
    )
    dashboard_port: int = variable(
        "ROLLCALL_DASHBOARD_PORT",
        "The head's Ray dashboard and job API.",
        at_least=1,
        at_most=parse.LAST_PORT,
        default=8265,
    )
    control_port: int = variable(
        "ROLLCALL_CONTROL_PORT",
        "The head's roll call, state, metrics and page.",
        at_least=1,
        at_most=parse.LAST_PORT,
        default=8267,
    )
    bind: str | None = variable(
        "ROLLCALL_BIND",
        "The one address at which the control port listens: IPv4, IPv6, or a host name that has one"
        " address. It is the head's own address, too, unless `ROLLCALL_NODE_ADDRESS` is set."
        " Ray's [ports](#ports) stay as they are.",
        parse=parse.listening_address,
        shown="all interfaces",
    )
    worker_ports: PortRange = variable(
        "ROLLCALL_WORKER_PORTS",
        "The ports of Ray's worker processes, on every node: 32 at least.",
        parse=parse.port_range,
        default=PortRange(10002, 10999),
    )
    token: Secret | None = variable(
        "ROLLCALL_TOKEN",
        "The cluster's one secret, for Ray and the control port; at least "
        f"{parse.SHORTEST_TOKEN} characters.",
        parse=parse.token,
        shown="the head makes one in the run directory",
        secret=True,
    )
    read_key: Secret | None = variable(
        "ROLLCALL_READ_KEY",
        "The [key](#keys) that may read.",
        parse=parse.token,
        shown="derived from the token",
        secret=True,
    )
    operator_key: Secret | None = variable(
        "ROLLCALL_OPERATOR_KEY",
        "The [key](#keys) that may also stop runs.",
        parse=parse.token,
        shown="derived from the token",
        secret=True,
    )
    submit_key: Secret | None = variable(
        "ROLLCALL_SUBMIT_KEY",
        "The [key](#keys) that may also submit jobs.",
        parse=parse.token,
        shown="derived from the token",
        secret=True,
    )
    takes_jobs: bool = variable(
        "ROLLCALL_SUBMIT",
        "0: nobody can submit jobs, not even with the token.",
        default=True,
    )
    tls: Tls = variable(
        "ROLLCALL_TLS",
        "`auto`, on every node and where commands run: [TLS](#tls) for control port and Ray, by"
        " certificates that the token vouches for.",
        parse=parse.tls,
        default=Tls.OFF,
    )
    tls_cert: Path | None = variable(
        "ROLLCALL_TLS_CERT",
        "For [TLS](#tls) with your own certificates: this node's (PEM).",
    )
    tls_key: Path | None = variable(
        "ROLLCALL_TLS_KEY", "The key of `ROLLCALL_TLS_CERT` (PEM), without a passphrase."
    )
    tls_ca: Path | None = variable(
        "ROLLCALL_TLS_CA",
        "The authority that signed the nodes' certificates (PEM). Commands need only this one.",
    )
    node_name: str = variable(
        "ROLLCALL_NODE_NAME",
        "This node's name in the roll and in its log file's name. A second node on one "
        "machine needs a name and a `ROLLCALL_RAY_TEMP_DIR` of its own.",
        parse=parse.node_name,
        shown="the platform's, else the host name",
        replaces=("node_name",),
    )
    node_address: str | None = variable(
        "ROLLCALL_NODE_ADDRESS",
        "This node's own address.",
        parse=parse.host,
        shown="the platform's, else the source address of the route to the head",
        replaces=("node_address",),
    )
    num_cpus: int | None = variable(
        "ROLLCALL_NUM_CPUS",
        "CPUs to offer to Ray.",
        at_least=0,
        at_most=parse.MOST_CPUS,
        shown="all usable",
    )
    num_gpus: int | None = variable(
        "ROLLCALL_NUM_GPUS",
        "GPUs to offer to Ray.",
        at_least=0,
        at_most=parse.MOST_GPUS,
        shown="all that are visible",
        replaces=("gpus_per_node",),
    )
    gpu_memory: int | None = variable(
        "ROLLCALL_GPU_MEMORY",
        "Memory of each GPU, such as `80GB`, for the choice of the layout.",
        parse=parse.size,
        shown="what the driver says",
    )
    ray_temp_dir: Path | None = variable(
        "ROLLCALL_RAY_TEMP_DIR",
        "A directory that only this user can read (mode 0700), with Ray's files in `ray`.",
        parse=parse.ray_temp_dir,
        shown="/tmp/rollcall-UID",
    )
    standby_ranks: bool = variable(
        "ROLLCALL_STANDBY_RANKS", "0: no [standby ranks](recovery.md#standby-ranks).", default=True
    )
    grace_seconds: float = variable(
        "ROLLCALL_GRACE_SECONDS",
        "Time for a save after SIGTERM.",
        default=25.0,
    )
    start_id: str | None = variable(
        "ROLLCALL_START_ID",
        "Any text, the same on all nodes. After `rollcall stop`, a node that starts again with the"
        " same text [does not resume](platforms/index.md#stop-and-resume).",
        parse=parse.start_id,
        shown="the platform's, else –",
        replaces=("start_id",),
    )
    preempt_file: Path | None = variable(
        "ROLLCALL_PREEMPT_FILE",
        "When root or this user makes this file, act as on SIGTERM: the machine is taken away.",
    )
    node_timeout: float = variable(
        "ROLLCALL_NODE_TIMEOUT",
        "A node that is silent for this long counts as lost.",
        at_least=5,
        default=15.0,
    )
    log: LogFormat = variable(
        "ROLLCALL_LOG",
        "Lines of the node's console: `text`, or `json` [objects](monitoring.md#logs-as-json).",
        default=LogFormat.TEXT,
    )
    webhook: Secret | None = variable(
        "ROLLCALL_WEBHOOK",
        "URL to which the head posts start, failures, recoveries and end of the run, as JSON that "
        "Slack takes. [Details](monitoring.md#webhook).",
        parse=parse.webhook,
        secret=True,
    )
    image: str | None = variable(
        "ROLLCALL_IMAGE",
        "The image's digest; the head refuses a node with another one.",
        parse=parse.image,
        shown="computed from source and locks when the image is built",
    )

    def __repr__(self) -> str:
        values = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
        return redact(f"Settings({', '.join(values)})", self.secrets)

    @property
    def secrets(self) -> frozenset[str]:
        """The texts that no message and no page may show."""
        own = (getattr(self, name) for name, one in declared().items() if one.about.secret)
        given = (secret.reveal() for secret in own if isinstance(secret, Secret))
        own_variables = variables_before(self.job)[0]
        of_job = secret_texts({**self.runtime_env.get("env_vars", {}), **own_variables})
        return secret_texts(self.environ) | of_job | frozenset(given)

    @property
    def keeps_spares(self) -> bool:
        """Whether a node beyond the workers waits for a place, instead of taking one.

        The platform and ROLLCALL_REPLACE_COMMAND may both bring a node for a lost one.
        """
        brings = self.replace_command is not None and self.ray_address is None
        return self.spare_workers > 0 or self.stragglers is Stragglers.REPLACE or brings

    @property
    def shares_run_dir(self) -> bool:
        return self.storage == parse.SHARED

    @property
    def url(self) -> str | None:
        """The URL of the control port from outside, the first of `urls`."""
        return next(iter(self.urls), None)

    @property
    def store(self) -> str | None:
        """The URL of the store to which checkpoints are uploaded."""
        return self.storage if "://" in self.storage else None

    @property
    def tls_mode(self) -> Tls:
        is_given = self.tls_cert or self.tls_key or self.tls_ca
        return Tls.GIVEN if is_given else self.tls

    @property
    def scheme(self) -> str:
        """Of the control port's URL."""
        return "http" if self.tls_mode is Tls.OFF else "https"

    @property
    def ray_home(self) -> Path:
        """The directory of this user alone that has Ray's, which Ray opens to every user."""
        return self.ray_temp_dir or ray_home.default(self.environ)

    @property
    def ray_dir(self) -> Path:
        return self.ray_home / ray_home.NAME

    @property
    def node_mark(self) -> str:
        """The mark of this node's processes, which another node on the machine does not have."""
        return f"{self.node_name}@{self.ray_home}"

    def variable(self, name: str) -> str | None:
        """The variable that gave the field `name`; None if it has its default."""
        names = declared()[name].about.names
        return next((given for given in names if self.environ.get(given, "").strip()), None)


@cache
def declared() -> Mapping[str, Declared[Variable]]:
    """Return the variables by the names of their fields, in the order of declaration."""
    return {variable.path[0]: variable for variable in declared_in(Settings, Variable)}


def variable_names() -> list[str]:
    """Return the names of all variables, and those of secrets' files."""
    return [name for variable in declared().values() for name in variable.about.names]
