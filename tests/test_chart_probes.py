"""The probes of the Helm chart ask at the ports that the pod's variables name."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.http_serving import Handler, serving
from tests.support.repository import ROOT

HELPERS = (ROOT / "compose/kubernetes/chart/templates/_helpers.tpl").read_text()
HEALTH = '{{ include "rollcall.health" . }}'


class Health(Handler):
    status = 200

    def do_GET(self) -> None:
        self.answer(self.status if self.path == "/healthz" else 404)


class Ill(Health):
    status = 500


def script(name: str) -> str:
    """A script of the chart, which has no other template in it than that of the health."""
    found = re.search(rf'define "rollcall.{name}" -}}}}\n(.*?)\n{{{{- end', HELPERS, re.DOTALL)
    assert found is not None
    whole = found[1] if name == "health" else found[1].replace(HEALTH, script("health"))
    assert "{{" not in whole
    return whole


def probed(name: str, **environ: str) -> bool:
    done = subprocess.run(
        ["bash", "-c", script(name)],
        env={"PATH": "/usr/bin:/bin", **environ},
        stderr=subprocess.DEVNULL,
        timeout=20,
        check=False,
    )
    return done.returncode == 0


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that is bound, so that nothing else takes it, and where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(("handler", "healthy"), [(Health, True), (Ill, False)])
def test_a_head_is_asked_at_its_control_port(handler: type[Handler], *, healthy: bool) -> None:
    with serving(handler) as url:
        port = {"ROLLCALL_CONTROL_PORT": url.rsplit(":", 1)[1].strip("/")}
        assert probed("ready", **port) is healthy
        assert probed("live", **port) is healthy


def test_a_head_that_does_not_listen_yet_is_alive_and_not_ready(free_port: int) -> None:
    assert not probed("ready", ROLLCALL_CONTROL_PORT=str(free_port))
    assert probed("live", ROLLCALL_CONTROL_PORT=str(free_port))


@pytest.mark.parametrize("index", ["JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX"])
@pytest.mark.parametrize("form", ["{}-65535", "{} - 65535"])
def test_a_worker_is_asked_at_the_first_of_its_ports(index: str, form: str, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ray:
        listens = form.format(ray.getsockname()[1])
        assert probed("ready", **{index: "2", "ROLLCALL_WORKER_PORTS": listens})
    silent = form.format(free_port)
    assert not probed("ready", **{index: "2", "ROLLCALL_WORKER_PORTS": silent})


def test_without_variables_the_ports_are_the_defaults_of_the_reference() -> None:
    asked = re.findall(r":-(\d{4,5})}", script("ready") + script("live"))
    assert asked == ["8267", "10002", "8267"]
