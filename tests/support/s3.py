"""A store that speaks S3, on loopback: moto's own server in a thread of this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.loaders import create_loader
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

from entrypoint.net.port_block import PortBlock

LOADER = create_loader()
"""Reads botocore's models once, not once for each client."""
ACCESS = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret-key-of-a-test"}


@dataclass
class S3:
    """A server with one bucket. What it holds outlives a `stop`."""

    port: int
    bucket: str
    server: BaseWSGIServer = field(init=False)
    received: int = field(init=False, default=0)
    """Bytes of the requests' bodies so far."""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/runs/one"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def start(self) -> None:
        moto, handler = DomainDispatcherApplication(create_backend_app), MotoRequestHandler

        def app(environ: dict[str, Any], start: Any) -> Any:
            self.received += int(environ.get("CONTENT_LENGTH") or 0)
            return moto(environ, start)

        self.server = make_server("127.0.0.1", self.port, app, True, request_handler=handler)
        # moto's own thread looks every 0.5 s whether it is to end.
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def names(self) -> dict[str, int]:
        """Name of each file of the run → its bytes."""
        listed = boto3.client("s3").list_objects_v2(Bucket=self.bucket, Prefix="runs/one/")
        rows = listed.get("Contents", [])
        return {row["Key"].removeprefix("runs/one/"): row["Size"] for row in rows}

    def put(self, name: str, content: bytes) -> None:
        boto3.client("s3").put_object(Bucket=self.bucket, Key=f"runs/one/{name}", Body=content)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """The server; this process has the variables that name it."""
    with PortBlock() as port:  # reserved also between a `stop` and a `start`
        url = f"http://127.0.0.1:{port}"
        environment = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**ACCESS, **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("botocore.session.create_loader", lambda _: LOADER)
        found = S3(port, f"bucket-{uuid.uuid4().hex}")
        found.start()
        boto3.client("s3").create_bucket(Bucket=found.bucket)
        yield found
        found.stop()
