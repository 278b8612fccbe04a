"""A Ray that does not start: what is told of it, and when it is started again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.net.wait import NotYetError
from entrypoint.node import ray_command_line, ray_node, ray_start_errors
from entrypoint.node.ray_node import RayNode
from entrypoint.processes.inbox import Inbox, RayEnded, RayFailedError
from tests.support.waiting import eventually

ME = NodeInfo(node="n", address="127.0.0.1", versions={})
TAKEN = """\
2026-11-22 05:42:31,500\tINFO usage_lib.py:449 -- Usage stats collection is disabled.
Traceback (most recent call last):
  File "/opt/venv/bin/ray", line 6, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.12/site-packages/ray/_private/node.py", line 771, in _init_gcs_client
    raise RuntimeError(
RuntimeError: Failed to start GCS.  Last 1 lines of error files:
[2026-11-22 05:42:31,637 C 19172 19172] (gcs_server) grpc_server.cc:133: Failed to start the grpc \
server. The specified port is 6379.

.Please check /tmp/ray/session/logs/gcs_server.out for details.
"""
SLOW = """\
2026-11-26 08:03:07,316\tINFO scripts.py:940 -- Local node IP: 127.0.0.2
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/ray/_private/node.py", line 423, in __init__
    raise Exception(
Exception: The current node timed out during startup. This could happen because some of the raylet \
failed to startup or the GCS has become overloaded.
"""
DASHBOARD = """\
2026-11-26 08:03:37,302\tERROR dashboard.py:326 -- The dashboard on node n failed with the \
following error:
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/ray/dashboard/dashboard.py", line 315, in <module>
    loop.run_until_complete(dashboard.run())
RuntimeError: Module MetricsHead failed to start. {}
"""
TIMEOUT = "Timeout after 30.0 seconds."


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Of a node whose Ray is the program that `ray_is` wrote."""
    monkeypatch.setattr(ray_command_line, "ray_command", lambda: (str(tmp_path / "ray"),))
    with TemporaryDirectory() as short:
        environ = {
            "ROLLCALL_RUN_DIR": str(tmp_path),
            "ROLLCALL_NODE_NAME": f"start-{os.getpid()}",
            "ROLLCALL_RAY_TEMP_DIR": short,
            "ROLLCALL_RECIPE": "command",
        }
        yield read_settings(environ, ["true"])


def ray_is(tmp_path: Path, script: str) -> None:
    """Write a program that has the number of its starts in $starts."""
    ray = tmp_path / "ray"
    count = f"echo >> {tmp_path}/starts; starts=$(wc -l < {tmp_path}/starts)\n"
    ray.write_text(f"#!/bin/sh\n{count}{script}\n")
    ray.chmod(0o755)


def said(words: str) -> str:
    return f"cat <<'END'\n{words}END\n"


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text().splitlines())


def test_of_a_ray_that_does_not_start_the_error_is_told_in_a_line_without_its_frames() -> None:
    words = ray_start_errors.last_words(TAKEN)
    assert words.startswith("RuntimeError: Failed to start GCS. Last 1 lines of error files: [2026")
    assert "The specified port is 6379." in words
    assert words.endswith("gcs_server.out for details.")
    last = "all was well\n\x1b[1mKilled\x1b[22m by somebody\n\n"
    assert ray_start_errors.last_words(last) == "Killed by somebody"
    assert ray_start_errors.last_words("\n") == "it said nothing"
    assert (
        len(ray_start_errors.last_words("RuntimeError: " + 9999 * "x"))
        == ray_start_errors.LONGEST_WORDS
    )


def test_what_ray_logs_after_an_error_is_no_part_of_it() -> None:
    after = (
        "2026-11-26 08:03:37,316\tSUCC scripts.py:979 -- --------------------\n"
        "2026-11-26 08:03:37,316\tINFO scripts.py:987 -- To add another node, run\n"
    )
    words = ray_start_errors.last_words(DASHBOARD.format(TIMEOUT) + after)
    assert words == f"RuntimeError: Module MetricsHead failed to start. {TIMEOUT}"


def test_a_ray_that_ends_at_its_start_is_told_of_in_a_line_that_names_its_log(
    tmp_path: Path, settings: Settings
) -> None:
    ray_is(tmp_path, f"{said(TAKEN)}exit 1")
    node = RayNode(settings, (), ME, "t", Inbox())
    with node, pytest.raises(RayFailedError) as failed:
        node.wait_ready(node.says_started, threading.Event())
    log = tmp_path / "logs" / f"ray-{settings.node_name}.log"
    assert str(failed.value).startswith(f"Ray did not start (its log is {log}): RuntimeError: Fail")
    assert "\n" not in str(failed.value)
    assert starts(tmp_path) == 1


def test_files_that_hide_modules_of_python_from_ray_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert ray_start_errors.hiding_files(tmp_path) == ""
    (tmp_path / "types.py").touch()
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "__init__.py").touch()
    of_ray = [sys.executable, "-S", "-c", "from multiprocessing.spawn import spawn_main"]
    assert subprocess.run(of_ray, capture_output=True, timeout=60).returncode == 1
    said = ray_start_errors.hiding_files(tmp_path)
    assert said.startswith(f"; queue, types.py in {tmp_path} hides a module of Python from Ray: ")


def test_a_ray_that_had_too_little_time_is_started_again_once_its_rest_is_gone(
    tmp_path: Path, settings: Settings
) -> None:
    left = tmp_path / "left"
    first = f"setsid sleep 600 > /dev/null 2>&1 & echo $! > {left}; {said(SLOW)}exit 1"
    ray_is(
        tmp_path, f"if [ $starts = 1 ]; then {first}; fi\necho Ray runtime started\nexec sleep 60"
    )
    inbox = Inbox()
    with RayNode(settings, (), ME, "t", inbox) as node:
        node.wait_ready(node.says_started, threading.Event())
        assert starts(tmp_path) == 2
        assert not psutil.pid_exists(int(left.read_text()))
        assert inbox.take(timeout=0.3) is None  # nobody is told of the first
        psutil.Process(node._process.pid).kill()
        assert inbox.take(timeout=20) == RayEnded(128 + 9)


def test_a_ray_that_always_lacks_time_is_started_again_for_as_long_as_a_start_may_take(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_node, "READY_TIMEOUT_SECONDS", 2.0)
    ray_is(tmp_path, f"{said(SLOW)}exit 1")
    node = RayNode(settings, (), ME, "t", Inbox())
    began = time.monotonic()
    with node, pytest.raises(RayFailedError) as failed:
        node.wait_ready(node.says_started, threading.Event())
    assert 2.0 <= time.monotonic() - began < 10.0
    assert starts(tmp_path) > 1
    assert "the start of Ray on this node: not there after 2 s" in str(failed.value)
    assert "Exception: The current node timed out during startup." in str(failed.value)


def dashboard_of(tmp_path: Path, reason: str) -> str:
    """Return the shell's words that start a dashboard which has failed, and hangs."""
    program = tmp_path / "ray-package" / "dashboard" / "dashboard.py"
    program.parent.mkdir(parents=True)
    program.write_text("import time\ntime.sleep(600)\n")
    logs = tmp_path / "session-logs"
    logs.mkdir()
    (logs / "dashboard.log").write_text(DASHBOARD.format(reason))
    return f"{sys.executable} {program} --log-dir={logs} --port=8265 &"


def never() -> None:
    raise NotYetError("Ray's dashboard: [Errno 111] Connection refused")


def test_a_dashboard_that_has_failed_ends_the_wait_although_its_process_hangs(
    tmp_path: Path, settings: Settings
) -> None:
    ray_is(tmp_path, f"{dashboard_of(tmp_path, 'Received EOF from pipe.')}\nexec sleep 60")
    node = RayNode(settings, (), ME, "t", Inbox())
    began = time.monotonic()
    with node, pytest.raises(RayFailedError) as failed:
        node.wait_ready(never, threading.Event())
    assert time.monotonic() - began < 20
    assert str(failed.value).endswith(
        ": its dashboard failed: RuntimeError: Module MetricsHead failed to start. "
        "Received EOF from pipe."
    )


def test_the_reason_of_a_try_that_lacked_time_is_told_when_the_wait_is_over(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_node, "READY_TIMEOUT_SECONDS", 3.0)
    ray_is(tmp_path, f"if [ $starts = 1 ]; then {said(SLOW)}exit 1; fi\nexec sleep 60")
    node = RayNode(settings, (), ME, "t", Inbox())
    with node, pytest.raises(RayFailedError, match="The current node timed out during startup"):
        node.wait_ready(never, threading.Event())


def test_a_dashboard_that_lacked_time_is_a_reason_to_start_ray_again(
    tmp_path: Path, settings: Settings
) -> None:
    dashboard = dashboard_of(tmp_path, TIMEOUT)
    ray_is(
        tmp_path,
        f"if [ $starts = 1 ]; then {dashboard} else echo Ray runtime started; fi\nexec sleep 60",
    )
    with RayNode(settings, (), ME, "t", Inbox()) as node:
        node.wait_ready(node.says_started, threading.Event())
        eventually(lambda: starts(tmp_path) == 2)
