"""HTTP servers on loopback: a status as asked, a Ray dashboard of 300 nodes, a late service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.http_serving import Handler, serving


class Status(Handler):
    """Answers `GET /503` with 503, and so on."""

    def do_GET(self) -> None:
        self.answer(int(self.path[1:]))


@pytest.fixture
def server() -> Iterator[str]:
    with serving(Status) as url:
        yield url


ROWS = [
    {"node_id": f"{n:x}", "node_name": f"w-{n}", "node_ip": f"10.0.0.{n}", "state": state}
    for n, state in enumerate(["DEAD"] * 150 + ["ALIVE"] * 150)
]


class Dashboard(Handler):
    """Answers as Ray's: at most 100 rows where no limit is said, those that a filter lets pass."""

    def do_GET(self) -> None:
        asked = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
        key, wanted = asked.get("filter_keys", ""), asked.get("filter_values")
        rows = [row for row in ROWS if wanted is None or row[key] == wanted]
        rows = rows[: int(asked.get("limit", 100))]
        status = 200 if self.headers["Authorization"] == "Bearer right" else 401
        self.answer(status, json.dumps({"data": {"result": {"result": rows}}}).encode())


@pytest.fixture
def dashboard() -> Iterator[str]:
    with serving(Dashboard) as url:
        yield url


# Arguments: the port, and the seconds before it listens.
SERVER = """
import http.server, sys, time
time.sleep(float(sys.argv[2]))
handler = http.server.BaseHTTPRequestHandler
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"""
