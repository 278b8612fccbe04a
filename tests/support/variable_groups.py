"""The order in which docs/reference.md has the variables, and the nodes on which each is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GROUPS: Mapping[str, Sequence[str]] = {
    "Role and address of a node": (
        *("ray_worker", "head_address", "head_pod_id", "node_name", "node_address", "ray_address"),
    ),
    "Workers and spares": (
        *("expected_workers", "min_workers", "replace_timeout", "spare_workers"),
        *("spare_check_seconds", "replace_command", "stragglers"),
    ),
    "The job": (
        *("recipe", "job", "waits_for_jobs", "name", "check_code", "runtime_env", "step_pattern"),
        *("checkpoints", "resume_args", "wandb_api_key", "debug_ray"),
    ),
    "Run directory and temporary files": ("run_dir", "storage", "ray_temp_dir"),
    "Reward and retrieval servers": (
        *("reward_url", "reward_command", "reward_on"),
        *("retriever_url", "retriever_command", "retriever_on"),
        *("service_key", "insecure", "service_timeout"),
    ),
    "Restarts and time limits": (
        *("max_restarts", "hang_timeout", "head_failover", "head_timeout", "roll_timeout"),
        *("node_timeout", "grace_seconds", "preempt_file", "start_id", "standby_ranks"),
    ),
    "Checks and resources of a node": (
        *("preflight", "preflight_skip", "num_cpus", "num_gpus", "gpu_memory", "resources"),
        "image",
    ),
    "Port numbers": ("control_port", "ray_port", "dashboard_port", "worker_ports", "bind", "urls"),
    "Tokens, keys and certificates": (
        *("token", "read_key", "operator_key", "submit_key", "takes_jobs"),
        *("tls", "tls_cert", "tls_key", "tls_ca"),
    ),
    "Logs and messages": ("log", "webhook"),
}
"""Heading → fields of Settings."""

ON_HEAD = frozenset(
    {
        *("expected_workers", "min_workers", "replace_timeout", "spare_workers"),
        *("replace_command", "stragglers", "head_failover", "max_restarts", "hang_timeout"),
        *("roll_timeout", "read_key", "operator_key", "submit_key", "takes_jobs", "webhook"),
        *("recipe", "job", "waits_for_jobs", "name", "check_code", "runtime_env", "step_pattern"),
        *("checkpoints", "resume_args", "bind"),
    }
)
"""What only a head reads. A worker that takes its place gets them from it."""
ON_WORKER = frozenset({"head_address", "head_pod_id", "spare_check_seconds"})
"""What only a worker needs; a head may have it, too."""


def nodes_of(field: str) -> str:
    """Return where a variable is set."""
    if field in ON_HEAD:
        return "head"
    return "worker" if field in ON_WORKER else "each node"
