"""Which nodes Ray takes for alive, of what its dashboard answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from entrypoint.net.wait import NotYetError
from entrypoint.node.ray_node import Alive, alive_nodes

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


def test_all_living_nodes_are_counted_however_many_and_none_of_the_dead(dashboard: str) -> None:
    alive = alive_nodes(dashboard, "right")
    assert len(alive) == 150
    assert alive[0] == Alive("96", "w-150", "10.0.0.150")


def test_who_cannot_ask_does_not_know_yet(dashboard: str) -> None:
    with pytest.raises(NotYetError, match="401"):
        alive_nodes(dashboard, "wrong")
