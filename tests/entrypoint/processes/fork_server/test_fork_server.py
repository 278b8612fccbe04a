"""Processes forked from one that has imported all they need are as if they had been started."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from contract.files import private_dir
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.processes.fork_server import client, proc_view, shim
from entrypoint.processes.process import NODE_MARK, find_marked
from tests.support.fork_server import DEFAULT, FORK_SERVER
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

WORKER = "ray/_private/workers/default_worker.py"
TELL = """
    import json, os, sys, psutil
    me = psutil.Process()
    umask = os.umask(0)
    told = {
        "argv": sys.argv[1:], "name": __name__, "path": sys.path[0], "directory": os.getcwd(),
        "variables": dict(os.environ), "umask": umask, "input": sys.stdin.read(),
        "forked": "forked_from" in sys.modules, "pid": os.getpid(), "parent": os.getppid(),
        "shown_variables": me.environ(), "shown": me.cmdline(),
        "files": len(os.listdir("/proc/self/fd")),
    }
    print("an error", file=sys.stderr)
    print(json.dumps(told))
"""
DRAW = """
    import json, random, uuid, numpy, torch
    from ray import WorkerID
    own = WorkerID.from_random().hex(), uuid.uuid4().hex, random.random(), numpy.random.rand()
    print(json.dumps([*own, torch.rand(1).item()]))
    torch.manual_seed(1)
    print(json.dumps((torch.rand(64, 500) @ torch.rand(500, 64)).softmax(1).sum(0).tolist()))
"""
DEVICE = """
import sys
sys.modules["__main__"].DEVICES = ("/dev/zero",)  # of a machine without a GPU
held = open("/dev/zero")
"""
THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=[60]).start()
"""


@dataclass(frozen=True)
class Home:
    """Of a fork server, and of the programs that it may be asked for."""

    path: Path
    env: dict[str, str]

    def run(
        self, program: str, *arguments: str, text: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(program, *arguments)
        return subprocess.run(
            command,
            env=self.env | env,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.path,
        )

    def begin(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """It is to say a line as soon as it has begun."""
        command = self.command(program, *arguments)
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True)

    def command(self, program: str, *arguments: str) -> list[str]:
        path = self.path / WORKER
        path.write_text(textwrap.dedent(program))
        return [str(self.path / "python"), str(path), *arguments]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    path = tmp_path_factory.mktemp("f")
    (path / WORKER).parent.mkdir(parents=True)
    (path / "forked_from.py").write_text("import numpy, torch")
    client.write_shim(path)
    ray = {"SPT_NOENV": "1", "RAY_CLIENT_MODE": "0"}  # the second is set by Ray's import
    env = {**ray, **os.environ, "PYTHONPATH": f"{Path.cwd()}:{path}"}
    server = serve(path, env, "forked_from")
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("ready")
        yield Home(path, env)
    finally:
        server.kill()
        server.communicate()


def serve(home: Path, env: dict[str, str], module: str) -> subprocess.Popen[str]:
    argv = [str(home), str(os.getpid()), module, proc_view.padding(client.TITLE_BYTES)]
    padding = {proc_view.PADDING: proc_view.padding(client.PADDING_BYTES)}
    return subprocess.Popen(
        [sys.executable, "-m", "entrypoint.processes.fork_server.server", *argv],
        env=env | {NODE_MARK: "the server's"} | padding,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_fork_is_in_all_that_it_sees_a_process_that_was_started(home: Home) -> None:
    before = os.umask(0o027)
    try:
        ended = home.run(TELL, "--an", "argument", text="told", RAY_JOB_ID="7", **{NODE_MARK: "n"})
    finally:
        os.umask(before)
    told = json.loads(ended.stdout)
    assert told["forked"]
    assert (told["argv"], told["name"]) == (["--an", "argument"], "__main__")
    assert (told["path"], told["directory"]) == (str((home.path / WORKER).parent), str(home.path))
    assert told["variables"] == home.env | {"RAY_JOB_ID": "7", NODE_MARK: "n"}
    assert (told["umask"], told["input"], ended.stderr) == (0o027, "told", "an error\n")
    # And so does who looks at it, or for it.
    command_line = [sys.executable, str(home.path / WORKER), "--an", "argument"]
    assert [word for word in told["shown"] if word] == command_line
    assert told["shown_variables"] | told["variables"] == told["shown_variables"]
    assert told["files"] == started_plainly(home)["files"]


def test_a_title_that_ray_gives_takes_the_place_of_the_whole_command_line(home: Home) -> None:
    program = """
        import psutil
        from ray._raylet import setproctitle
        for title in ("ray::IDLE, for a long time", "ray::policy-0"):
            setproctitle(title)
        print("".join(psutil.Process().cmdline()))
    """
    assert home.run(program, "a word").stdout == "ray::policy-0\n"


def started_plainly(home: Home, **env: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(home.run(TELL, **env or {"HF_HOME": "/elsewhere"}).stdout)
    assert not told["forked"]
    return told


def test_forks_draw_different_numbers_and_compute_the_same_as_any_process(home: Home) -> None:
    (drawn, computed), (others, again) = (
        map(json.loads, home.run(DRAW).stdout.splitlines()) for _ in range(2)
    )
    assert all(one != other for one, other in zip(drawn, others, strict=True))
    torch.manual_seed(1)
    here = (torch.rand(64, 500) @ torch.rand(500, 64)).softmax(1).sum(0).tolist()
    assert computed == again == here


@pytest.mark.parametrize("how", ["sys.exit(70)", "os.kill(os.getpid(), 11)", "os._exit(0)"])
def test_the_shim_ends_as_its_process_does(home: Home, how: str) -> None:
    code = home.run(f"import os, sys, forked_from; {how}").returncode
    assert code == {"sys.exit(70)": 70, "os.kill(os.getpid(), 11)": -11, "os._exit(0)": 0}[how]


def test_signals_to_the_shim_reach_its_process(home: Home) -> None:
    program = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        print("begun", flush=True)
        time.sleep(60)
    """
    with home.begin(program) as shim:
        assert shim.stdout is not None
        assert shim.stdout.readline() == "begun\n"
        shim.terminate()
        assert shim.wait(10) == 143


def test_a_worker_that_is_killed_as_it_starts_is_started_anew_by_its_shim(home: Home) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with home.begin(program) as shim:
        assert shim.stdout is not None
        os.kill(int(shim.stdout.readline()), signal.SIGKILL)
        assert int(shim.stdout.readline()) == shim.pid
        shim.kill()


@pytest.mark.parametrize(
    ("status", "seconds", "told", "again"),
    [
        (signal.SIGKILL, 2.0, (), True),
        (None, 2.0, (), True),  # the server was killed with it
        (signal.SIGKILL, 60.0, (), False),  # Ray knows of it
        (signal.SIGKILL, 2.0, (signal.SIGTERM,), False),  # Ray wants its end
        (signal.SIGSEGV, 2.0, (), False),
        (1 << 8, 2.0, (), False),
        (0, 2.0, (), False),
    ],
)
def test_only_one_that_was_killed_early_and_by_nobody_who_told_the_shim_is_started_anew(
    status: int | None, seconds: float, told: tuple[int, ...], again: bool
) -> None:
    assert shim.End(status, seconds, told).is_kill_at_start is again


def test_a_killed_shim_takes_its_process_with_it(home: Home) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with home.begin(program) as shim:
        assert shim.stdout is not None
        forked = psutil.Process(int(shim.stdout.readline()))
        assert forked.pid != shim.pid
        shim.send_signal(signal.SIGKILL)
        shim.wait(10)
        forked.wait(10)


@pytest.mark.parametrize("name", ["HF_HOME", "PYTHONHASHSEED"])
def test_with_another_variable_that_imports_may_read_a_process_is_started(
    home: Home, name: str
) -> None:
    assert started_plainly(home, **{name: "7"})["variables"] == home.env | {name: "7"}


def test_all_else_becomes_python_itself(home: Home) -> None:
    shim = subprocess.Popen(
        [home.path / "python", "-c", "import os, sys; print(os.getpid(), sys.executable)"],
        env=home.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shim.communicate(timeout=10)[0].split() == [str(shim.pid), sys.executable]


def test_a_server_that_does_not_answer_in_time_is_not_waited_for(
    home: Home, tmp_path: Path
) -> None:
    client.write_shim(tmp_path)
    (tmp_path / WORKER).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()  # a server that is still importing
        began = time.monotonic()
        impatient = Home(tmp_path, home.env | {shim.REGISTER_TIMEOUT: "1"})
        with impatient.begin("print('started', flush=True)") as started:
            assert started.stdout is not None
            assert started.stdout.readline() == "started\n"
    assert 0.5 < time.monotonic() - began < 30


def test_without_a_server_a_process_is_started(home: Home, tmp_path: Path) -> None:
    client.write_shim(tmp_path)
    (tmp_path / WORKER).parent.mkdir(parents=True)
    told = json.loads(Home(tmp_path, home.env).run(TELL).stdout)
    assert not told["forked"]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (THREAD, "has started 1 threads"),
        (DEVICE, "has opened /dev/zero"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_server_that_is_not_fit_to_fork_does_not_serve(
    home: Home, tmp_path: Path, module: str, reason: str
) -> None:
    (tmp_path / "broken.py").write_text(module)
    server = serve(tmp_path, home.env | {"PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}, "broken")
    said = server.communicate(timeout=20)[0]
    assert server.returncode == 1
    assert "not serving" in said
    assert reason in said


def test_a_server_that_is_killed_too_often_is_said_once_with_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "PRELOADED", "json")
    monkeypatch.setattr(client, "PAUSES_SECONDS", (0.01, 0.01))
    mark, words = client.mark(of(tmp_path)), "killed too often.* starts some 4 s slower"

    found: list[psutil.Process] = []

    def runs() -> bool:
        found[:] = find_marked(mark)  # in the moment in which it starts, it has no variables
        return bool(found)

    with client.ForkServer(of(tmp_path), os.environ):
        for _ in range(3):
            assert "no fork server" not in caplog.text
            eventually(runs, seconds=60)
            found[0].kill()
            eventually(lambda: not found[0].is_running(), seconds=60)
        eventually(lambda: "no fork server" in caplog.text, seconds=60)
        assert find_marked(mark) == []
    assert len(re.findall(words, caplog.text)) == caplog.text.count("no fork server") == 1


def test_the_server_ends_with_its_node(tmp_path: Path) -> None:
    settings = of(tmp_path)
    program = f"""
import dataclasses, os, pathlib, time
from entrypoint.processes.fork_server import client as node
from entrypoint.config.read import read_settings
node.PRELOADED = "json"
settings = read_settings({dict(settings.environ)!r})
settings = dataclasses.replace(settings, ray_temp_dir=pathlib.Path({str(tmp_path)!r}))
node.ForkServer(settings, os.environ).__enter__()
print("begun", flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as entrypoint:
        try:
            assert entrypoint.stdout is not None
            assert entrypoint.stdout.readline() == "begun\n"
            eventually(lambda: bool(find_marked(client.mark(settings))))
            (server,) = find_marked(client.mark(settings))
        finally:
            entrypoint.kill()
    server.wait(10)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    private_dir.remove(client.home_of(of(tmp_path)))


def of(root: Path, **environ: str) -> Settings:
    told = {"ROLLCALL_RUN_DIR": str(root), "ROLLCALL_NODE_NAME": "n"}
    settings = read_settings(told | FORK_SERVER | environ)
    return replace(settings, ray_temp_dir=root)


def test_the_shim_is_used_if_it_is_there(tmp_path: Path) -> None:
    assert client.with_python(of(tmp_path), "ray") == ["ray"]
    client.write_shim(client.home_of(of(tmp_path)))
    shim = str(client.home_of(of(tmp_path)) / "python")
    assert shim in client.with_python(of(tmp_path), "ray")


@pytest.mark.parametrize(
    "environ", [DEFAULT, {"ROLLCALL_RECIPE": "command", "ROLLCALL_JOB": "true"}]
)
def test_by_default_and_for_other_recipes_there_is_no_fork_server_nor_a_word_of_one(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = of(tmp_path, **environ)
    with client.ForkServer(settings, os.environ):
        assert find_marked(client.mark(settings)) == []
        assert not client.home_of(settings).parent.exists()
        assert client.with_python(settings, "ray") == ["ray"]
        assert client.python(settings) == sys.executable
    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("python", ["/opt/my python", f"/opt/{'x' * 120}/python"])
def test_no_shim_is_written_that_the_system_could_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(OSError, match="first line"):
        client.write_shim(tmp_path)
