"""An HTTP server that answers by a script."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]
"""Status and body: bytes as they are, anything else as JSON."""
Script = Callable[[int, dict[str, Any]], Answer]
"""What to answer to the n-th request (from 0) with this body."""


class ScriptedServer:
    """Answers by a script and remembers what it was asked."""

    def __init__(self, script: Script, port: int = 0, **headers: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        """The header Authorization of each request."""
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
                with lock:
                    number = len(self.bodies)
                    self.bodies.append(body)
                    self.keys.append(handler.headers.get("authorization", ""))
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
