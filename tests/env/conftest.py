"""Real servers on loopback: one that keeps a script of faults, one that runs our application."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from env.types import RewardRequest

Answer = tuple[int, Any]
"""Status and body: bytes as they are, anything else as JSON."""
Script = Callable[[int, dict[str, Any]], Answer]
"""What to answer to the n-th request (from 0) with this body."""


class ScriptedServer:
    """Answers by a script and remembers what it was asked."""

    def __init__(self, script: Script, port: int = 0, **headers: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
                with lock:
                    number = len(self.bodies)
                    self.bodies.append(body)
                status, answer = script(number, body)
                payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                with contextlib.suppress(OSError):
                    handler.send_response(status)
                    handler.send_header("Content-Length", str(len(payload)))
                    for name, value in headers.items():
                        handler.send_header(name.replace("_", "-"), value)
                    handler.end_headers()
                    handler.wfile.write(payload)

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/get_reward"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    with contextlib.ExitStack() as stack:

        def start(script: Script, port: int = 0, **headers: str) -> ScriptedServer:
            server = ScriptedServer(script, port, **headers)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def serve() -> Iterator[Callable[[Starlette], str]]:
    """Runs an application under uvicorn; gives its address, without a path."""
    with contextlib.ExitStack() as stack:

        def start(app: Starlette) -> str:
            listening = socket.create_server(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
            thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(10)

            stack.callback(stop)
            deadline = time.monotonic() + 10
            while not server.started and time.monotonic() < deadline:
                time.sleep(0.01)
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield start


@pytest.fixture
def requests() -> list[RewardRequest]:
    """Five sums; the reward that the scripted servers give is the label's number."""
    return [RewardRequest(f"{n}+0={n}", f"{n}+0=", str(n)) for n in range(5)]
