"""Spans of steps, as a receiver of OTLP over HTTP gets them by the standard variables."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.otlp_server import Collector, attributes, otlp_server
from trainer.config.config import Config
from trainer.metrics import tracing
from trainer.metrics.tracing import TracedStep

CONFIG = Config(run_dir=Path("/shared/run"))
BEGAN = 1_700_000_000.0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with otlp_server() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server


def step(number: int) -> TracedStep:
    phases = {"rollout": 2.0, "update": 1.5}
    return TracedStep(step=number, began=BEGAN, phases=phases, attributes={"rollcall.reward": 0.5})


def sent(*steps: int) -> None:
    """Send the traces of steps, and what is left at the end."""
    traces = tracing.connect(CONFIG, os.environ)
    assert traces
    for number in steps:
        traces.step(step(number))
    traces.close()


def test_phases_follow_one_another_within_the_span_of_their_step(collector: Collector) -> None:
    sent(7)
    (whole,) = collector.named("step")
    (rollout,), (update,) = collector.named("rollout"), collector.named("update")
    assert rollout.parent_span_id == update.parent_span_id == whole.span_id
    assert rollout.trace_id == update.trace_id == whole.trace_id
    times = [whole.start_time_unix_nano, rollout.start_time_unix_nano]
    times += [rollout.end_time_unix_nano, update.start_time_unix_nano]
    times += [update.end_time_unix_nano, whole.end_time_unix_nano]
    assert [at / 1e9 - BEGAN for at in times] == [0, 0, 2, 2, 3.5, 3.5]
    about = attributes(whole.attributes)
    assert about == {"rollcall.step": 7, "rollcall.attempt": 1, "rollcall.reward": 0.5}


def test_each_step_is_a_trace_and_a_later_checkpoint_joins_that_of_its_step(
    collector: Collector,
) -> None:
    traces = tracing.connect(CONFIG, os.environ)
    assert traces
    for number in (1, 2, 3):
        traces.step(step(number))
    traces.checkpoint(2, 4.0, bytes=1000)
    traces.checkpoint(0, 1.0)  # of a step that another attempt has made
    traces.close()
    first, second, third = collector.named("step")
    assert len({first.trace_id, second.trace_id, third.trace_id}) == 3
    own, alone = collector.named("checkpoint")
    assert own.trace_id == second.trace_id
    assert own.parent_span_id == second.span_id
    assert (own.end_time_unix_nano - own.start_time_unix_nano) / 1e9 == pytest.approx(4.0)
    assert attributes(own.attributes)["rollcall.bytes"] == 1000
    assert alone.trace_id not in {first.trace_id, second.trace_id, third.trace_id}


def test_the_standard_variables_name_service_attributes_and_headers(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-training")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=search,deployment.environment=lab")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    sent(1)
    (resource,) = collector.resources
    assert resource["service.name"] == "my-training"
    assert resource["team"] == "search"
    assert resource["deployment.environment"] == "lab"
    assert resource["rollcall.run_dir"] == "/shared/run"
    assert collector.headers[0]["x-key"] == "abc"
    assert collector.headers[0]["content-encoding"] == "gzip"


def test_a_service_without_a_name_is_rollcall(collector: Collector) -> None:
    sent(1)
    assert [resource["service.name"] for resource in collector.resources] == ["rollcall"]


def test_the_endpoint_of_traces_alone_turns_them_on(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
    sent(1)
    assert len(collector.named("step")) == 1


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")]
)
def test_a_variable_turns_traces_off(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert tracing.connect(CONFIG, os.environ) is None


def test_a_protocol_that_is_not_supported_is_said(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert tracing.connect(CONFIG, os.environ) is None
    assert capsys.readouterr().out == (
        "No traces in this attempt: OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and only http/protobuf is "
        "supported.\n"
    )


def test_a_value_that_the_exporter_refuses_is_said(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
    assert tracing.connect(CONFIG, os.environ) is None
    assert "No traces in this attempt: schedule_delay_millis must be" in capsys.readouterr().out


def test_a_missing_exporter_is_said_with_the_extra_that_brings_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracing, "EXTRA", "opentelemetry.exporter.otlp.proto.nowhere")
    assert tracing.connect(CONFIG, os.environ) is None
    assert "pip install 'rollcall-rlhf[otlp]'" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["refused", "503"])
def test_a_collector_that_is_down_delays_neither_a_step_nor_the_end(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, free_port: int, how: str
) -> None:
    """An export that is tried again takes 10 s, which nobody waits for."""
    monkeypatch.setattr(tracing, "CLOSE_SECONDS", 0.1)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    collector.status = 503
    if how == "refused":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port}")
    since = time.monotonic()
    sent(*range(1, 50))
    assert time.monotonic() - since < 8
    assert collector.spans == []


NOTHING_IMPORTED = """
import sys
from pathlib import Path
from trainer.config.config import Config
from trainer.metrics import tracing
assert tracing.connect(Config(run_dir=Path("/nowhere")), {}) is None
print(sorted(name for name in sys.modules if name.split(".")[0] == "opentelemetry"))
"""


def test_without_a_variable_nothing_of_opentelemetry_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_IMPORTED], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
