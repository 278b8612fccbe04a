"""HTTP servers on loopback: a status as asked, a Ray dashboard of 300 nodes, a late service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest


class Status(BaseHTTPRequestHandler):
    """Answers `GET /503` with 503, and so on."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Status) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


ROWS = [
    {"node_id": f"{n:x}", "node_name": f"w-{n}", "node_ip": f"10.0.0.{n}", "state": state}
    for n, state in enumerate(["DEAD"] * 150 + ["ALIVE"] * 150)
]


class Dashboard(BaseHTTPRequestHandler):
    """Answers as Ray's: at most 100 rows where no limit is said, those that a filter lets pass."""

    def do_GET(self) -> None:
        asked = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
        key, wanted = asked.get("filter_keys", ""), asked.get("filter_values")
        rows = [row for row in ROWS if wanted is None or row[key] == wanted]
        rows = rows[: int(asked.get("limit", 100))]
        self.send_response(200 if self.headers["Authorization"] == "Bearer right" else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"result": {"result": rows}}}).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def dashboard() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# Arguments: the port, and the seconds before it listens.
SERVER = """
import http.server, sys, time
time.sleep(float(sys.argv[2]))
handler = http.server.BaseHTTPRequestHandler
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"""
