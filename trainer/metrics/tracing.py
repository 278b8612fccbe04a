"""Traces of training steps by OTLP, if one of OpenTelemetry's variables names a collector.

One trace a step: a span for the step, one for each of its phases, and one for its checkpoint. The
times are those of the metrics. A background thread sends the spans; what a collector does not take
is dropped, and training waits for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from contract.journal import attempt_number
from contract.launch import distribution
from contract.options import TRUE
from contract.redaction import redact
from trainer.config.config import Config

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP = "http/protobuf"
EXTRA = "opentelemetry.exporter.otlp.proto.http"
SERVICE = "rollcall"
"""Name of the service without OTEL_SERVICE_NAME."""
CLOSE_SECONDS = 3.0
"""How long the end of a run waits for the last spans."""
KEPT_STEPS = 8
"""Newest steps whose trace a checkpoint can still join."""
NANO = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """What the trace of a step shows."""

    step: int
    began: float
    """Seconds of the epoch."""
    phases: Mapping[str, float]
    """Seconds of each phase, in the order in which they followed one another."""
    attributes: Mapping[str, float | int]


def connect(config: Config, environ: Mapping[str, str]) -> StepTraces | None:
    """Return what sends traces; None if no variable asks for them, or if that is impossible.

    Imports nothing of OpenTelemetry unless a variable names a collector.
    """
    if not any(environ.get(name) for name in ENDPOINTS) or _is_off(environ):
        return None
    if why := _unusable(environ):
        print(f"No traces in this attempt: {why}.", flush=True)
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    try:
        exporter = OTLPSpanExporter()
        named = OTELResourceDetector().detect().attributes
        own = {"service.name": SERVICE, "rollcall.run_dir": str(config.run_dir)}
        resource = Resource.create({key: text for key, text in own.items() if key not in named})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except (ValueError, OSError) as error:
        print(f"No traces in this attempt: {redact(str(error))}.", flush=True)
        return None
    _say_once_a_minute()
    return StepTraces(provider)


def _is_off(environ: Mapping[str, str]) -> bool:
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() in TRUE
    return disabled or environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none"


def _unusable(environ: Mapping[str, str]) -> str | None:
    """Return why no traces can be sent, in words."""
    for name in PROTOCOLS:
        if (protocol := environ.get(name)) and protocol != HTTP:
            return f"{name} is {protocol}, and only {HTTP} is supported"
    parts = EXTRA.split(".")
    names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    if all(find_spec(name) for name in names):
        return None
    return f"the exporter is not installed: {distribution.install('otlp')}"


class _OnceAMinute(logging.Filter):
    """Lets one record of the exporter through each minute: a collector may be down for hours."""

    def __init__(self) -> None:
        super().__init__()
        self._said = -60.0

    def filter(self, record: logging.LogRecord) -> bool:
        if (now := time.monotonic()) - self._said < 60:
            return False
        self._said = now
        return True


def _say_once_a_minute() -> None:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    logger = logging.getLogger(trace_exporter.__name__)
    if not any(isinstance(found, _OnceAMinute) for found in logger.filters):
        logger.addFilter(_OnceAMinute())


@dataclass(slots=True)
class StepTraces:
    """Sends traces of steps. A span's times are given: nothing is measured here."""

    provider: Any
    _steps: dict[int, Any] = field(default_factory=dict)
    """The newest steps' contexts, by step."""

    def step(self, traced: TracedStep) -> None:
        """Send the trace of a step that was trained."""
        from opentelemetry.trace import set_span_in_context

        tracer, begin = self.provider.get_tracer("rollcall"), int(traced.began * NANO)
        about = {"rollcall.step": traced.step, "rollcall.attempt": attempt_number()}
        whole = tracer.start_span(
            "step", context=_root(), start_time=begin, attributes={**about, **traced.attributes}
        )
        within = set_span_in_context(whole)
        for phase, seconds in traced.phases.items():
            span = tracer.start_span(phase, context=within, start_time=begin, attributes=about)
            begin += int(seconds * NANO)
            span.end(begin)
        whole.end(begin)
        self._steps[traced.step] = within
        for old in sorted(self._steps)[:-KEPT_STEPS]:
            del self._steps[old]

    def checkpoint(self, step: int, seconds: float, **attributes: float) -> None:
        """Send the span of a checkpoint that was complete just now, in the trace of its step."""
        end, about = time.time_ns(), {f"rollcall.{name}": v for name, v in attributes.items()}
        span = self.provider.get_tracer("rollcall").start_span(
            "checkpoint",
            context=self._steps.get(step) or _root(),
            start_time=end - int(seconds * NANO),
            attributes={"rollcall.step": step, "rollcall.attempt": attempt_number(), **about},
        )
        span.end(end)

    def close(self) -> None:
        """Send the last spans, within CLOSE_SECONDS."""
        ending = threading.Thread(target=self.provider.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)


def _root() -> Any:
    """Return a context without a span: a step begins a trace."""
    from opentelemetry.context import Context

    return Context()
