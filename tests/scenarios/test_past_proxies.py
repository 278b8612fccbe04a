"""A proxy in the environment: the cluster's own are asked past it, and it sees no token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from entrypoint.net import wait
from entrypoint.net.http import status_of
from entrypoint.node.ray_state import alive_nodes
from tests.support.control import Head, node_info
from tests.support.fake_ray import NEVER, FakeRay, client, submit
from tests.support.http_serving import Handler, serving

pytestmark = pytest.mark.timeout(30)

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
Asked = list[tuple[str, str | None]]
"""What a proxy was asked for, and with which token."""


class Proxy(Handler):
    asked: Asked

    def refuse(self) -> None:
        self.asked.append((self.requestline, self.headers["Authorization"]))
        self.answer(502)

    do_GET = do_POST = do_CONNECT = refuse


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """One that the environment names for everything, and that leads nowhere."""
    handler: type[Proxy] = type("Recording", (Proxy,), {"asked": []})
    with serving(handler) as url:
        for name in VARIABLES:
            for spelling in (name, name.lower()):
                monkeypatch.setenv(spelling, url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield handler.asked


@pytest.fixture(autouse=True)
def unasked(proxy: Asked) -> Iterator[None]:
    yield
    assert proxy == []


def test_rays_dashboard_is_asked_itself_for_its_nodes(dashboard: str) -> None:
    assert len(alive_nodes(dashboard, "right")) == 150


def test_a_job_is_submitted_watched_and_stopped_at_ray_itself(ray: FakeRay) -> None:
    submit(ray, NEVER)
    assert len(ray.submitted) == 1
    jobs = client(ray.url)
    assert jobs.info("one").status == "RUNNING"
    jobs.stop("one")
    assert ray.stopped == ["one"]


def test_a_service_is_waited_for_where_the_job_will_ask_it(server: str) -> None:
    assert status_of(f"{server}/200") == 200


def test_the_head_is_asked_itself(tmp_path: Path) -> None:
    head = Head(tmp_path)
    client = head.client()
    with head.control:
        check_in = partial(client.check_in, node_info("a"))
        assert wait.until("the head", check_in, timeout=10, stop=NEVER).incarnation == "first"
