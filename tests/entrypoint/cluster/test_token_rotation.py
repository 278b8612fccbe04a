"""Another token for a run that goes on: who gets it, and what the old one opens."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from entrypoint.__main__ import main
from entrypoint.cluster import access
from entrypoint.cluster.access import NEEDED, RENEWAL, Access, keys_of
from entrypoint.cluster.client import ControlClient
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.config.read import read_settings
from entrypoint.net.http import bearer
from entrypoint.processes.inbox import HeadSaid, Message
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head, node_info
from tests.support.waiting import eventually

GIVEN = "another-token-of-the-admin"


class Worker:
    """A real client of the head, with its long poll open."""

    def __init__(self, head: Head, name: str = "a", token: str = TOKEN) -> None:
        self.client = head.client(token)
        self.tokens: list[str] = []
        self.client.on_token = self.tokens.append
        self.said: list[Message] = []
        self.client.check_in(node_info(name), joined=True)
        self.client.watch(name, "first", self.said.append)
        eventually(lambda: head.control._registry._entries[name].asking == 1)


def rotate(head: Head, monkeypatch: pytest.MonkeyPatch, *words: str, token: str = TOKEN) -> int:
    with monkeypatch.context() as patch:
        patch.setenv("ROLLCALL_TOKEN", token)
        patch.setattr(
            "sys.argv", ["rollcall", "rotate-token", head.link().partition("/?")[0], *words]
        )
        return main()


def new_token(head: Head) -> str:
    return head.run.token.read_text()


def test_the_old_token_opens_nothing_and_a_worker_goes_on_with_the_new_one(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Worker(head)
    assert rotate(head, monkeypatch) == 0
    new = new_token(head)
    assert stat.S_IMODE(head.run.token.stat().st_mode) == 0o600
    assert re.fullmatch("[0-9a-f]{48}", new)
    eventually(lambda: worker.tokens == [new])
    assert head.heard.token_changed_for == ["a"]
    said = capsys.readouterr()
    assert "the old one opens nothing; a has it" in said.out
    assert new not in said.out + said.err
    for key in (TOKEN, *run_token.keys(TOKEN)):
        for (method, path), need in NEEDED.items():
            if need is not Access.NONE:
                path = re.sub(r"\{\w+\}", "x", path)
                assert head.status(method, path, key) == 401, (method, path)
        assert "retired" in head.get("/v1/state", key).json()
    assert head.get("/v1/state", new).json()["nodes"][0]["present"]
    assert head.get("/v1/state", run_token.read_only(new)).is_success
    head.control.announce("finished", 0)
    eventually(lambda: worker.said == [HeadSaid("finished", 0)])  # its poll goes on, with no loss


def test_nobody_gets_the_new_token_by_the_old_one_or_by_another_nodes_key(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(head)
    monkeypatch.setattr(worker.client, "_own_key", "rollcall-node-" + "0" * 48)
    monkeypatch.setattr("entrypoint.cluster.token_rotation.TOLD_SECONDS", 0.3)
    assert rotate(head, monkeypatch) == 0
    assert worker.tokens == []
    for key in (TOKEN, new_token(head), *run_token.keys(TOKEN), worker.client._own_key):
        assert head.status("POST", RENEWAL, key) == 401
        assert head.status("GET", RENEWAL, key) == 401


def test_a_worker_that_was_away_is_refused_with_cause_and_remedy(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = head.client()
    away.check_in(node_info("b"))
    head.control._registry._entries["b"].hung_up = True
    assert rotate(head, monkeypatch) == 0
    for client in (away, head.client()):
        with pytest.raises(WrongTokenError, match=r"was replaced at .* by `rollcall rotate-token`"):
            client.check_in(node_info("b"))
    assert head.status("POST", RENEWAL, away._own_key) == 401


def test_a_key_of_a_worker_is_of_use_for_a_minute(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = head.client()
    client.check_in(node_info("b"))
    monkeypatch.setattr(access, "RENEWAL_SECONDS", -1.0)
    monkeypatch.setattr("entrypoint.cluster.token_rotation.TOLD_SECONDS", 0.1)
    assert rotate(head, monkeypatch) == 0
    assert head.status("POST", RENEWAL, client._own_key) == 401


def test_a_worker_that_starts_after_a_change_gets_the_token_that_ray_has(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert head.client().check_in(node_info("a")).ray_token is None
    assert rotate(head, monkeypatch) == 0
    assert head.client(new_token(head)).check_in(node_info("b")).ray_token == TOKEN


def test_a_given_token_is_replaced_by_a_given_one_which_no_file_has(
    head: Head,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head.keys.is_given = True
    worker = Worker(head)
    assert rotate(head, monkeypatch) == ExitCode.USAGE
    assert "give the new one by --token-file" in capsys.readouterr().err
    file = tmp_path / "new"
    file.write_text(f"{GIVEN}\n")
    assert rotate(head, monkeypatch, "--token-file", str(file)) == 0
    assert "set ROLLCALL_TOKEN to the new token" in capsys.readouterr().out
    eventually(lambda: worker.tokens == [GIVEN])
    file.unlink()
    kept = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in kept if GIVEN in text or TOKEN in text]
    told = {"ROLLCALL_RUN_DIR": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"was replaced at .*: give the new token"):
        run_token.for_head(read_settings({**told, "ROLLCALL_TOKEN": TOKEN}))
    settings = read_settings({**told, "ROLLCALL_TOKEN": GIVEN})
    assert run_token.for_head(settings) == GIVEN
    later = keys_of(settings, GIVEN)  # of a head that starts again
    assert (bool(later.retired(TOKEN)), later.access(TOKEN)) == (True, Access.NONE)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("short", "has fewer than 16 characters"),
        ("two words of many characters", "has characters that no key has"),
        (TOKEN, "is, or was, a key of this run"),
        (run_token.for_submit(TOKEN), "is, or was, a key of this run"),
        (run_token.read_only("of-another-run-of-all"), "is, or was, a key of this run"),
    ],
)
def test_a_token_that_would_be_none_changes_nothing(
    head: Head,
    tmp_path: Path,
    given: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "new").write_text(given)
    assert rotate(head, monkeypatch, "--token-file", str(tmp_path / "new")) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert says in said
    assert given not in said
    assert head.get("/v1/state").is_success
    body = head.control._keys.token
    assert body == TOKEN
    answer = ControlClient("127.0.0.1", head.port, TOKEN).ask(
        "POST", "/v1/token", content=b"[1]", headers=bearer(TOKEN)
    )
    assert answer.status_code == 400


def test_a_token_does_not_come_back(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rotate(head, monkeypatch) == 0
    first = new_token(head)
    assert rotate(head, monkeypatch, token=first) == 0
    (head.run.root / "old").write_text(TOKEN)
    words = ("--token-file", str(head.run.root / "old"))
    assert rotate(head, monkeypatch, *words, token=new_token(head)) == ExitCode.USAGE
    assert len(json.loads(head.run.retired_tokens.read_text())) == 8


def test_without_storage_the_token_stays(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head.run.retired_tokens.mkdir()
    assert rotate(head, monkeypatch) == ExitCode.UNREACHABLE
    assert "the head cannot answer now" in capsys.readouterr().err
    assert head.get("/v1/state").is_success
    assert not head.run.token.exists()


def test_a_head_that_ended_while_it_changed_the_token_makes_another(tmp_path: Path) -> None:
    settings = read_settings({"ROLLCALL_RUN_DIR": str(tmp_path)})
    first = run_token.for_head(settings)
    run_token.retire(Head(tmp_path).run, first, "2026-01-31T18:00:00Z")
    assert run_token.for_head(settings) != first


@pytest.mark.parametrize("named", ["/none/of-this", "ftp://h", "h"])
def test_what_is_neither_a_run_nor_an_address_is_refused(
    named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLCALL_TOKEN", TOKEN)
    monkeypatch.setattr("sys.argv", ["rollcall", "rotate-token", named])
    assert main() == ExitCode.USAGE
    assert "nor is it a directory" in capsys.readouterr().err
