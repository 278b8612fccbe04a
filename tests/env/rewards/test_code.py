"""Programs against unit tests: kinds of tests, cheats, limits, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from env.registry import pure_reward, reward_function
from env.rewards import sandbox
from env.rewards.code import code_of
from env.rewards.code_tests import Trial, read_tests
from env.rewards.sandbox import End, Limits, SandboxError
from env.types import RewardRequest, Score
from tests.support.repository import ROOT

QUICK = Limits(cpu_seconds=1.0, wall_seconds=3.0)
DOUBLE = "def double(x):\n    return 2 * x\n"
INPUTS = json.dumps({"inputs": ["1\n", "5\n"], "outputs": ["2\n", "10"]})
CALLS = json.dumps({"inputs": [[1], "5"], "outputs": [2, "10"], "fn_name": "double"})
MBPP = json.dumps(["assert double(1) == 2", "assert double(5) == 10"])
ALONE = json.dumps({"inputs": [[1], [5]], "outputs": [[2], [10]], "fn_name": "double"})
LINES = json.dumps({"inputs": [["1", "5"]], "outputs": [["2", "10", ""]]})
HALF = json.dumps({"inputs": ["1\n"], "outputs": ["0.5 1\n"]})
HUMANEVAL = json.dumps(
    {"test": "def check(candidate):\n    assert candidate(3) == 6", "entry_point": "double"}
)


def score(code: str, label: str | None, spec: str = "code?seconds=2&wall_seconds=10") -> Score:
    completion = f"<think>```python\nx\n```</think>So:\n```python\n{code}\n```\nDone."
    (score,) = reward_function(spec)([RewardRequest(f"Q{completion}", "Q", label)])
    return score


@pytest.mark.parametrize(
    ("code", "label", "right"),
    [
        ("print(2 * int(input()))", INPUTS, True),
        ("print(2)", INPUTS, False),
        (DOUBLE, CALLS, True),
        ("class Solution:\n    def double(self, x): return x + x", CALLS, True),
        ("def double(x): return 2", CALLS, False),
        (DOUBLE, ALONE, True),  # APPS has results alone in lists, and texts as lists of lines
        ("def double(x): return [2 * x]", ALONE, True),
        ("def double(x): return 2", ALONE, False),
        ("for _ in '12': print(2 * int(input()))", LINES, True),
        ("print('0.500000 1')", HALF, True),
        ("print('0.51 1')", HALF, False),
        ("print('0.5 1.0')", HALF, False),
        (DOUBLE, MBPP, True),
        (DOUBLE, HUMANEVAL, True),
        (DOUBLE, "assert double(2) == 4", True),
        (DOUBLE, "assert double(2) == 5", False),
        ("def double(x:", MBPP, False),
        ("raise SystemExit(0)", MBPP, False),
        ("import os; os._exit(0)", CALLS, False),
        ("print([True, True])", MBPP, False),
    ],
)
def test_all_tests_of_the_label_must_pass(code: str, label: str, right: bool) -> None:
    got = score(code, label)
    assert got.ok, got.error
    assert got.reward == got.metrics["acc"] == float(right)


def test_partial_credit_is_the_share_of_tests_that_pass() -> None:
    got = score("print(2)", INPUTS, "code?partial_credit=1")
    assert (got.reward, got.metrics["acc"], got.metrics["passed"]) == (0.5, 0.0, 0.5)


BLOCKS = [
    ("```python\nx = 1\n```", "x = 1\n"),
    ("```\nx = 1\n```", "x = 1\n"),
    ("```python\nx = 0\n```\nBetter:\n```python3\nx = 1\n```", "x = 1\n"),
    ("Install:\n```bash\npip install a\n```\nThen:\n```python\nx = 1\n```", "x = 1\n"),
    ("```text\nan example\n```\n```\nx = 1\n```", "x = 1\n"),
    ("```python\nx = 1\n```\nOutput:\n```\n1\n```", "x = 1\n"),
    ('```python title="a.py"\nx = 1\n```\n```json\n{}\n```', "x = 1\n"),
    ("```Python\nx = 1\n```", "x = 1\n"),
    ("```python\nx = '```'\n```", "x = '```'\n"),
    ("```bash\nls\n```", None),
    ("```python\nx = 1", None),
]


@pytest.mark.parametrize(("completion", "code"), BLOCKS)
def test_the_code_is_the_last_python_block(completion: str, code: str | None) -> None:
    assert code_of(completion) == code


def test_a_completion_without_a_block_of_code_is_wrong() -> None:
    (got,) = reward_function("code")([RewardRequest("Qdouble it", "Q", MBPP)])
    assert (got.reward, got.metrics["format"]) == (0.0, 0.0)
    assert pure_reward("code") is None, "nobody who only looks runs code"


@pytest.mark.parametrize(
    "label",
    [
        *(None, "", "12", "[]", "[1]", '["assert ("]', '{"inputs": ["1"], "outputs": []}'),
        *('{"inputs": [1], "outputs": [2]}', '{"fn_name": "f"}', '{"test_list": []}', "null"),
        '{"inputs": ["{"], "outputs": ["1"], "fn_name": "f"}',
        json.dumps({"inputs": [[1]], "outputs": ["[" * 100_000], "fn_name": "f"}),
        json.dumps({"test_list": ["assert 1"], "test_imports": True}),
        json.dumps({"test_list": ["assert 1"], "test_imports": [1]}),
    ],
)
def test_a_label_without_tests_is_a_failure(label: str | None) -> None:
    assert read_tests(label or "") is None
    got = score(DOUBLE, label)
    assert not got.ok
    assert "no unit tests in the label" in got.error


def test_results_that_are_lists_in_lists_without_end_have_not_passed() -> None:
    trial = Trial("", mark="m ", expected=([[True, 1]],))
    assert trial.passed("m [[true, 1]]") == [True]
    assert trial.passed(f"m {'[' * 100_000}{']' * 100_000}") == [False]


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("while True: pass", End.TIMED_OUT),
        ("import time; time.sleep(60)", End.TIMED_OUT),
        ("bytearray(3 << 30)", End.FAILED),
        ("while True: print('x' * 1000)", End.FAILED),
        ("raise SystemExit(1)", End.FAILED),
        ("import os; os.abort()", End.FAILED),
        ("print('\\ud800')", End.FAILED),
    ],
)
def test_limits_end_a_program(program: str, end: End) -> None:
    began = time.monotonic()
    run = sandbox.run(program, "", QUICK)
    assert run.end is end
    assert len(run.output) <= QUICK.output_bytes
    assert time.monotonic() - began < 20


AWAY = "os.path.exists('stdout') and os.remove('stdout')"


@pytest.mark.parametrize("place", ["os.symlink({file!r}, 'stdout')", "os.mkfifo('stdout')"])
def test_only_what_the_program_has_printed_is_its_output(tmp_path: Path, place: str) -> None:
    file = tmp_path / "kept"
    file.write_text("a secret")
    program = f"import os\nprint('own', flush=True)\n{AWAY}\n{place}\nprint('more')"
    run = sandbox.run(program.format(file=str(file)), "", QUICK)
    assert (run.end, run.output) == (End.FINISHED, "own\nmore\n")


REACHES = """
import os, socket
for reach in (
    lambda: socket.create_connection(("127.0.0.1", {port})),
    lambda: socket.socket(socket.AF_UNIX),
    lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    lambda: os.kill({pid}, 9),
    lambda: open({file!r}, "a"),
    lambda: open({secret!r}).read(),
):
    try:
        print("reached", reach())
    except OSError as error:
        print(type(error).__name__)
print(sorted(set(os.environ) - {{"LC_CTYPE"}}))
"""


def test_a_program_reaches_no_network_no_process_no_secret_and_no_file_of_root(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kept"
    file.write_text("")
    file.chmod(0o644)
    secret = f"/proc/{os.getpid()}/environ"
    asked = REACHES.format(port=9, pid=os.getpid(), file=str(file), secret=secret)
    run = sandbox.run(asked, "", QUICK)
    said = run.output.splitlines()
    assert run.end is End.FINISHED
    assert said[:4] == ["PermissionError"] * 4
    if os.getuid() == 0:
        assert said[4] in {"PermissionError", "FileNotFoundError"}
        assert said[5] in {"PermissionError", "FileNotFoundError"}
    names = "['HOME', 'LANG', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH', 'PYTHONHASHSEED'"
    assert said[6].startswith(names)


WRITES = """
import ctypes, os, sys, threading
def attempt(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__
def fill():
    for number in range(200):
        open(f"{number}", "wb").write(b"x" * 1_000_000)
for directory in ("/tmp", "/var/tmp", "/dev/shm"):
    path = f"{directory}/rollcall-planted-{MARK}"
    print("wrote", attempt(lambda: open(path, "w").write("x")))
print("run", attempt(lambda: open("{KEPT}").read()))
print("own", attempt(lambda: open("here", "w").write("x")))
threads = [threading.Thread(target=print, args=("thread",))]
threads[0].start()
threads[0].join()
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
print("clone", ctypes.CDLL(None).syscall(clone, 0x10000000 | 17, 0, 0, 0, 0))
print("filled", attempt(fill), flush=True)
"""
SANDBOXED = """
import sys
from env.rewards import sandbox
run = sandbox.run(sys.stdin.read(), "", sandbox.Limits())
print(run.end, "mount" in run.namespaces, run.output, sep="\\n")
"""
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
"""As root in a container, who may make no namespace."""
OF_NO_CAPABILITY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""As root in a container that drops all capabilities: it cannot become another user."""
ALONE_IN_ITS_NAMESPACE = ("unshare", "--user", "--map-root-user")
"""As root in a container without rights on its machine, which knows no other user."""


@pytest.mark.parametrize(
    "around",
    [(), WITHOUT_RIGHTS, OF_NO_CAPABILITY, ALONE_IN_ITS_NAMESPACE],
    ids=["with namespaces", "without", "no capability", "the only user"],
)
def test_a_program_leaves_no_file_sees_no_path_of_the_run_and_makes_no_namespace(
    around: tuple[str, ...], tmp_path: Path
) -> None:
    if around and os.geteuid() != 0:
        pytest.skip("only root can give up a right")
    mark = f"{os.getpid()}-{'-'.join(around[:2])}"
    with tempfile.TemporaryDirectory() as run_dir:
        Path(run_dir).chmod(0o755)
        (kept := Path(run_dir) / "token").write_text("a secret")
        kept.chmod(0o644)  # as a user might leave it: no mode protects it
        asked = WRITES.replace("{MARK}", mark).replace("{KEPT}", str(kept))
        argv = [*around, sys.executable, "-c", SANDBOXED]
        done = subprocess.run(
            argv, cwd=ROOT, input=asked, capture_output=True, text=True, timeout=120, check=True
        )
    end, mounted, *said = done.stdout.splitlines()
    assert end == "finished", done.stdout
    assert [*planted("/tmp", mark), *planted("/var/tmp", mark), *planted("/dev/shm", mark)] == []
    assert said[3] in ("run FileNotFoundError", "run PermissionError")
    assert said[4:7] == ["own 1", "thread", "clone -1"]
    if mounted == "True":
        assert said[:3] == ["wrote 1"] * 3
        assert said[7] == "filled OSError"  # no space left, after 64 MB
    else:
        assert said[:3] == ["wrote PermissionError"] * 3


def planted(place: str, mark: str) -> list[Path]:
    return list(Path(place).glob(f"rollcall-planted-{mark}"))


LEAVES = """
import os, time
started = 0
try:
    while started < 500:
        if os.fork() == 0:
            os.setsid()
            time.sleep(4321)
        started += 1
except OSError:
    pass
print(started)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that every user can enter, for the sandboxes of this test alone."""
    with tempfile.TemporaryDirectory(prefix="sandboxes-") as made:
        Path(made).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def running_in(directory: Path) -> list[str]:
    """Processes whose working directory is below `directory`."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has just ended
            if str(link.readlink()).startswith(str(directory)):
                found.append(link.parent.name)
    return found


def test_a_fork_bomb_stays_small_and_nothing_is_left_of_it(temporary: Path) -> None:
    run = sandbox.run(LEAVES, "", Limits(processes=8))
    assert run.end is End.FINISHED
    assert 1 <= int(run.output) < 8
    assert running_in(temporary) == []
    assert list(temporary.iterdir()) == []


def test_a_program_ends_with_the_process_that_asked_for_it(temporary: Path) -> None:
    asks = "from env.rewards import sandbox\n"
    asks += "sandbox.run('import time; time.sleep(60)', '', sandbox.Limits(wall_seconds=60))"
    environment = os.environ | {"TMPDIR": str(temporary)}
    caller = subprocess.Popen([sys.executable, "-c", asks], cwd=ROOT, env=environment)
    deadline = time.monotonic() + 30
    while not running_in(temporary) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running_in(temporary)
    caller.kill()
    caller.wait()
    while running_in(temporary) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running_in(temporary) == []


def test_a_sandbox_that_cannot_start_is_a_failure_and_no_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "LAUNCHER", Path("/nonexistent.py"))
    with pytest.raises(SandboxError, match="the launcher ended with 2"):
        sandbox.run("print(1)", "", QUICK)
    got = score(DOUBLE, MBPP)
    assert not got.ok
    assert "the code did not run" in got.error
