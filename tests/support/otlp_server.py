"""A receiver of OTLP traces over HTTP, which reads the protobuf that an exporter sends."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.http_serving import Handler, serving


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.resources: list[dict[str, Any]] = []
        """The attributes of what sent spans, one for each request."""
        self.spans: list[Any] = []
        self.status = 200

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            self.resources.append(attributes(of_resource.resource.attributes))
            for scope in of_resource.scope_spans:
                self.spans.extend(scope.spans)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def otlp_server() -> Iterator[Collector]:
    collector = Collector()

    class Traces(Handler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.headers.append({name.lower(): text for name, text in self.headers.items()})
            if collector.status == 200:
                collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.answer(collector.status, answer, "application/x-protobuf")

    with serving(Traces) as collector.url:
        yield collector
