"""Where a command asks: at the addresses that it was given, and where the lease says."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import entrypoint.__main__ as entrypoint
from contract.run_dir import RunFiles
from entrypoint.commands import cli, head_client, node_shell
from entrypoint.commands.head_client import NoAnswerError
from entrypoint.commands.places import Place, places
from entrypoint.config.read import read_settings
from entrypoint.config.uses import Use
from entrypoint.net import relay
from entrypoint.net.sockets import listen
from entrypoint.node.head import _where
from entrypoint.run.lease import Lease
from tests.support.control import TOKEN, Head, answers
from tests.support.job_head import JobHead
from tests.support.waiting import eventually

OLD, NEW, THIRD = "127.0.0.6", "127.0.0.5", "127.0.0.7"


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """It was a worker. Nobody is at the old address."""
    head = Head(tmp_path, address=NEW)
    leases = RunFiles(tmp_path).leases
    with head.control, Lease(leases, address=NEW, was_worker=True):
        eventually(lambda: answers(head.port, NEW))
        yield head


def said(environ: dict[str, str], *words: str) -> int:
    return entrypoint._ask(cli.parse(words), environ)


def test_of_several_addresses_the_first_that_answers_is_asked_and_stands_in_the_link(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
    several = f"{OLD}:{head.port},{THIRD}:{head.port}, {NEW}:{head.port}"
    assert said(where, "status", "--json", "--address", several) == 0
    assert json.loads(capsys.readouterr().out)["page"].startswith(f"http://{NEW}:{head.port}/?")
    urls = f"http://{OLD}:{head.port}, http://{NEW}:{head.port}"
    assert said(where | {"ROLLCALL_URL": urls}, "open", "--json") == 0
    assert json.loads(capsys.readouterr().out)["url"].startswith(f"http://{NEW}:{head.port}/?")


def test_the_lease_leads_on_where_the_token_is_the_runs_own(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head.run.token.write_text(TOKEN)
    head.run.token.chmod(0o600)
    old = {"ROLLCALL_CONTROL_PORT": str(head.port), "ROLLCALL_RUN_DIR": str(head.run.root)}
    for named in (
        {"ROLLCALL_HEAD_ADDRESS": OLD},
        {"ROLLCALL_URL": f"http://{OLD}:{head.port}"},
    ):
        assert said(old | named, "status", "--json") == 0
        assert json.loads(capsys.readouterr().out)["page"].startswith(f"http://{NEW}:")
    given = {"ROLLCALL_URL": f"http://{OLD}:{head.port}", "ROLLCALL_TOKEN": TOKEN}
    with pytest.raises(NoAnswerError, match="Connection refused"):
        head_client.ask(read_settings(old | given), "GET", "/v1/state")


@pytest.mark.parametrize("words", [("status",), ("stop",), ("submit", "--", "true")])
def test_an_address_beside_a_run_that_no_setting_names_leads_to_no_other_head(
    head: Head,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """The shell has no setting, and a node of a run that has moved to another head lives here."""
    head.run.token.write_text(TOKEN)
    head.run.token.chmod(0o600)
    node = {"ROLLCALL_CONTROL_PORT": str(head.port), "ROLLCALL_RUN_DIR": str(head.run.root)}
    monkeypatch.setattr(node_shell, "with_node", lambda environ, **_: {**environ, **node})
    monkeypatch.setattr(node_shell, "environ_of", lambda pid, proc=None: {})
    command, *rest = words
    assert said({}, command, "--address", f"{OLD}:{head.port}", *rest) == 69
    assert f"no head answers: http://{OLD}:{head.port}" in capsys.readouterr().err
    assert said({}, "status", "--json", "--address", f"{NEW}:{head.port}") == 0
    assert json.loads(capsys.readouterr().out)["page"].startswith(f"http://{NEW}:")


def test_without_the_run_directory_a_lost_heads_address_is_not_enough_and_the_remedy_is_said(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
    assert said(where, "status", "--address", f"{OLD}:{head.port}") == 69
    error = capsys.readouterr().err
    assert f"no head answers: http://{OLD}:{head.port}" in error
    assert "set ROLLCALL_RUN_DIR to the run's directory, or give the address of another" in error


def test_an_address_that_another_run_has_by_now_does_not_hide_the_head(
    head: Head, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Head(tmp_path / "other", address=OLD, port=head.port)
    other.keys.rotate("another-runs-token", "now", {})
    with other.control:
        eventually(lambda: answers(head.port, OLD))
        where = {"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}
        both = f"{OLD}:{head.port},{NEW}:{head.port}"
        assert said(where, "status", "--json", "--address", both) == 0
        assert json.loads(capsys.readouterr().out)["page"].startswith(f"http://{NEW}:")
        assert said(where, "status", "--address", f"{OLD}:{head.port}") == 77


def test_a_directory_is_uploaded_whole_to_the_second_address(
    tmp_path: Path, closed_port: int
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('a step')\n")
    (tmp_path / "run").mkdir()
    with ExitStack() as running:
        jobs = running.enter_context(JobHead(tmp_path / "run"))
        port = jobs.head.port
        # What answers there has read the directory's begin, and leads to nobody.
        listener = listen(closed_port, OLD)
        running.enter_context(relay.relaying(listener, THIRD, closed_port))
        urls = f"http://{OLD}:{closed_port},http://127.0.0.1:{port}"
        words = ("submit", "--no-wait", "--working-dir", str(tmp_path / "code"), "--", "true")
        assert said(jobs.environment | {"ROLLCALL_URL": urls}, *words) == 0
        (package,) = (jobs.run.root / "packages").rglob("*.zip")
        assert "train.py" in zipfile.ZipFile(package).namelist()


def test_an_address_that_is_wrong_among_several_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        said({}, "status", "--address", "10.0.0.2:8267,10.0.0.3")
    assert ended.value.code == 64
    assert "'10.0.0.3' is not an address of a head" in capsys.readouterr().err


def test_a_named_runs_token_goes_where_its_lease_says_and_to_no_usual_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What listens at localhost:8267 may be anybody's."""
    run = RunFiles(tmp_path)
    run.token.write_text(TOKEN)
    run.token.chmod(0o600)
    run.journal.touch()
    clean = {"ROLLCALL_RUN_DIR": str(tmp_path)}
    given = clean | {"ROLLCALL_CONTROL_PORT": "7300"}
    asked = read_settings(clean, use=Use.ASK)
    assert places(asked) == [], "no head has begun"
    assert places(read_settings(clean | {"ROLLCALL_TOKEN": TOKEN}, use=Use.ASK)) == []
    assert places(read_settings(given, use=Use.ASK)) == [Place("localhost")]
    lease = Lease(run.leases, address=NEW)
    lease.about = _where(read_settings(given), NEW)
    here, own = Place("localhost", port=7300), Place(NEW, port=7300)
    with lease:
        assert places(asked) == [here, own]
        assert places(read_settings(given, use=Use.ASK)) == [Place("localhost"), Place(NEW)]
        secure = read_settings(clean | {"ROLLCALL_TLS": "auto"}, use=Use.ASK)
        assert places(secure) == [here, own], "by https, whatever the lease says"
        host = read_settings(clean | {"ROLLCALL_HEAD_ADDRESS": OLD}, use=Use.ASK)
        assert places(host) == [Place(OLD)]
        beat = lease.path.read_text()
        lease.path.write_text(beat.replace('"bind": ""', f'"bind": "{NEW}"'))
        assert places(asked) == [own]
        lease.path.write_text(beat.replace(f'"url": "http://{NEW}', '"url": "https://proxy'))
        assert places(asked) == [here, own, Place("", "https://proxy:7300")]
        lease.path.write_text(beat.replace("http:", "https:"))
        assert places(asked) == [Place("", f"https://{NEW}:7300")]
    assert places(asked) == [], "it has ended in order"
    lease.path.write_text(beat)  # as if it had been killed
    assert places(asked) == [], "the kernel of this machine knows"
    assert places(read_settings(given | {"ROLLCALL_TOKEN": TOKEN}, use=Use.ASK)) == []
    other = read_settings({"ROLLCALL_TOKEN": TOKEN, "ROLLCALL_RUN_DIR": "/none"}, use=Use.ASK)
    assert places(other) == [Place("localhost")], "who names no run gives the token to this machine"
    long_ago = time.time() - 200
    os.utime(lease.path, (long_ago, long_ago))
    for command in ("status", "stop"):
        assert said(clean, command) == 69
        assert capsys.readouterr().err.startswith(f"The head of {tmp_path} was on ")
    lease.path.write_text(beat.replace('"boot_id": "', '"boot_id": "of-another-'))
    assert places(asked) == [own], "of another machine, this kernel knows nothing"
