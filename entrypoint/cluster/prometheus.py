"""Pure: what the head knows, as Prometheus's metrics. docs/monitoring.md has their table.

A run's own numbers, such as its reward, are fields of `contract.progress.Progress`; each becomes a
gauge. `trainer.metrics.recorder` fills them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from contract.metrics.names import REWARD_CALL
from entrypoint.cluster.health import NodeChange
from entrypoint.cluster.measurements import Measurements
from entrypoint.cluster.slow_ranks import Speed
from entrypoint.run.flight_record.time_accounting import Tally

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OUTCOMES = ("finished", "failed", "stopped")
FACTS = ("name", "id", "recipe", "model", "job")
TIMING, MEMORY, GIGABYTES = "timing/", "memory/", "_gb"


@dataclass(frozen=True, slots=True)
class Metric:
    meaning: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = {
    "expected_workers": Metric("workers on the roll"),
    "present_workers": Metric("workers that joined and are there"),
    "expected_spares": Metric("`ROLLCALL_SPARE_WORKERS`"),
    "present_spares": Metric("spares that joined and are there"),
    "phase": Metric("1 for what the head does now: roll call, training, recovering, …", ("phase",)),
    "outcome": Metric("1 for the outcome of the run, once it has one; else 0", ("outcome",)),
    "run_info": Metric("1; the labels say what is run", FACTS),
    "node_up": Metric(
        "1 if the node is in the cluster, 0 if it is silent and not replaced",
        ("node", "role"),
    ),
    "node_silent_seconds": Metric("seconds since the node was heard", ("node",)),
    "node_gpus": Metric("GPUs that the node offers", ("node",)),
    "node_gpu_memory_bytes": Metric("memory of the node's smallest GPU", ("node",)),
    "node_check_warning": Metric(
        "1 for a preflight check that did not pass when the node started", ("node", "check")
    ),
    "node_oom_kills_total": Metric(
        "processes that the worker's kernel has killed for lack of memory", ("node",)
    ),
    "node_change": Metric(
        "1 for what has become worse on a part of the node since the head started",
        ("node", "kind", "part"),
    ),
    "rank_slowness": Metric(
        "how long a rank computes for the same work, times the duration of its peers",
        ("role", "rank", "node"),
    ),
    "slow_node_stays": Metric(
        "1 for a slow node that does not leave for a spare, with why", ("node", "why")
    ),
    "slow_nodes_replaced_total": Metric("slow nodes that have left for a spare"),
    "step": Metric("finished steps of the run"),
    "total_steps": Metric("steps that the run will have; 0 if that is not known"),
    "samples": Metric("completions trained on"),
    "attempt": Metric("number of the attempt that runs"),
    "reward": Metric("mean reward of the newest step"),
    "reward_first": Metric("mean reward of the first step"),
    "kl": Metric("mean KL divergence of the policy from the reference, nats a token"),
    "loss": Metric("newest loss that the job has reported"),
    "eval": Metric("newest held-out accuracy, 0 to 1"),
    "eval_before": Metric("held-out accuracy before the first step"),
    "tokens_per_second": Metric("tokens of the newest step, for each second of it"),
    "step_seconds": Metric("duration of the newest step"),
    "eta_seconds": Metric("estimated seconds until the last step"),
    "checkpoint": Metric("step of the newest complete checkpoint"),
    "in_memory": Metric("newest step that two nodes are known to have in memory"),
    "step_phase_seconds": Metric("duration of each phase of the newest step", ("phase",)),
    "peak_memory_bytes": Metric(
        "highest memory in the newest step: of a GPU, or of a process on CPUs",
        ("phase",),
    ),
    "reward_call_seconds": Metric("mean duration of a call of the reward in the newest step"),
    "run_dir_free_bytes": Metric("free space of the run directory's file system"),
    "run_dir_size_bytes": Metric("size of the run directory's file system"),
    "attempts_total": Metric("attempts of the run"),
    "failures_total": Metric(
        "attempts that failed, by class; head_lost: their head was lost", ("failure",)
    ),
    "last_failure_timestamp_seconds": Metric(
        "when an attempt last failed in this class", ("failure",)
    ),
    "repairs_total": Metric("losses that ended no attempt, by what was done", ("repair",)),
    "refusals_total": Metric("check-ins of nodes that the head refused"),
    "tokens_total": Metric("tokens of all trained steps, those of repeated steps too"),
    "restarts_left": Metric("restarts without new progress that are left"),
    "restarts_allowed": Metric("`ROLLCALL_MAX_RESTARTS`"),
    "effective_time_ratio": Metric("share of the time that went into steps that count"),
    "time_seconds": Metric("time of the run by its use, as in `rollcall report`", ("use",)),
    "start_timestamp_seconds": Metric("when the run began"),
    "last_step_timestamp_seconds": Metric("when the newest step was finished"),
    "last_checkpoint_timestamp_seconds": Metric("when the newest checkpoint was written"),
}
"""Name, without its prefix → what it is. Timestamps are seconds of the epoch."""

Sample = tuple[str, tuple[str, ...], float]
"""Name of a metric, the values of its labels, and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What the head knows when it is asked."""

    state: Mapping[str, Any]
    """As `ControlServer.state` returns it."""
    measured: Measurements = field(default_factory=Measurements)
    max_restarts: int | None = None
    """None: not known yet."""
    oom_kills: Mapping[str, int] = field(default_factory=dict)
    """Worker → processes that its kernel has killed for lack of memory."""
    health: Sequence[NodeChange] = ()
    speeds: Sequence[tuple[str, Speed]] = ()
    """The speed of each rank, with the name of its node."""


def text(scrape: Scrape) -> str:
    """Return the metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Once(scrape))
    return generate_latest(registry).decode()


class _Once(Collector):
    """Makes the metrics of one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        order = {name: place for place, name in enumerate(METRICS)}
        found = sorted(samples(self._scrape), key=lambda sample: order[sample[0]])
        for name, of_metric in groupby(found, key=lambda sample: sample[0]):
            made = _family(name)
            for _, labels, value in of_metric:
                made.add_metric(labels, value)
            yield made


def _family(name: str) -> GaugeMetricFamily | CounterMetricFamily:
    metric = METRICS[name]
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(f"rollcall_{name}", metric.meaning, labels=metric.labels)


def samples(scrape: Scrape) -> Iterator[Sample]:
    """Yield all samples of a scrape, in any order."""
    yield from _cluster(scrape.state)
    yield from _nodes(scrape)
    for name, value in (scrape.state.get("progress") or {}).items():
        if name in METRICS and isinstance(value, int | float):
            yield name, (), value
    yield from _step(scrape.measured.row)
    if (space := scrape.measured.space) is not None:
        yield "run_dir_free_bytes", (), space.free
        yield "run_dir_size_bytes", (), space.total
    if (tally := scrape.measured.tally) is not None:
        yield from _history(tally)
        if (allowed := scrape.max_restarts) is not None:
            yield "restarts_allowed", (), allowed
            yield "restarts_left", (), max(0, allowed - tally.attempts_without_progress)


def _cluster(state: Mapping[str, Any]) -> Iterator[Sample]:
    yield "expected_workers", (), state["expected_workers"]
    yield "present_workers", (), state["present"]
    yield "expected_spares", (), state.get("expected_spares", 0)
    yield "present_spares", (), len(state.get("spares", ()))
    yield "phase", (str(state["phase"]),), 1
    outcome = (state.get("outcome") or {}).get("outcome")
    for name in OUTCOMES:
        yield "outcome", (name,), name == outcome
    facts = {"job": state.get("job"), **(state.get("run") or {})}
    yield "run_info", tuple(facts.get(name) or "" for name in FACTS), 1


def _nodes(scrape: Scrape) -> Iterator[Sample]:
    head, spares = scrape.state.get("head_node"), scrape.state.get("spares", ())
    for node in [*([head] if head else []), *scrape.state["nodes"]]:
        name, has = node["node"], node["inventory"]
        role = "head" if node is head else "spare" if name in spares else "worker"
        yield "node_up", (name, role), node["present"] and node["joined"]
        yield "node_silent_seconds", (name,), node["silent_seconds"]
        yield "node_gpus", (name,), has.get("gpus", 0)
        yield "node_gpu_memory_bytes", (name,), has.get("gpu_memory_bytes", 0)
        for check in node["warnings"]:
            yield "node_check_warning", (name, check), 1
    for name, kills in scrape.oom_kills.items():
        yield "node_oom_kills_total", (name,), kills
    for one in scrape.health:
        yield "node_change", (one.node, one.change.kind, one.change.part), 1
    for one in scrape.state.get("slow_nodes", ()):
        yield "slow_node_stays", (one["node"], one["why"]), 1
    for name, speed in scrape.speeds:
        yield "rank_slowness", (speed.role, str(speed.rank), name), speed.times


def _step(row: Mapping[str, float]) -> Iterator[Sample]:
    """Yield what the newest step's row of metrics has, under the trainer's names."""
    for name, value in row.items():
        if name.startswith(TIMING) and name != f"{TIMING}step":
            yield "step_phase_seconds", (name.removeprefix(TIMING),), value
        elif name.startswith(MEMORY) and name.endswith(GIGABYTES):
            of = name.removeprefix(MEMORY).removesuffix(GIGABYTES)
            yield "peak_memory_bytes", (of,), value * 10**9
        elif name == REWARD_CALL:
            yield "reward_call_seconds", (), value


def _history(tally: Tally) -> Iterator[Sample]:
    yield "attempts_total", (), tally.attempts
    yield "refusals_total", (), tally.refusals
    yield "slow_nodes_replaced_total", (), tally.slow_left
    yield "tokens_total", (), tally.tokens
    if "step" in tally.newest:  # a cluster without a job, or a job that tells no steps, has none
        yield "effective_time_ratio", (), tally.effective_time_ratio
    for name, count in tally.failures.items():
        yield "failures_total", (name,), count
    for name, at in tally.failed.items():
        yield "last_failure_timestamp_seconds", (name,), at.timestamp()
    for name, count in tally.repairs.items():
        yield "repairs_total", (name,), count
    for use, seconds in tally.seconds.items():
        yield "time_seconds", (use,), seconds
    if tally.began is not None:
        yield "start_timestamp_seconds", (), tally.began.timestamp()
    for kind in ("step", "checkpoint"):
        if (newest := tally.newest.get(kind)) is not None:
            yield f"last_{kind}_timestamp_seconds", (), newest.timestamp()
