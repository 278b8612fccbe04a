"""Every path of a real head's control port, asked with every key; and every command."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.exit_codes import ExitCode
from contract.options import ConfigError
from entrypoint.__main__ import main
from entrypoint.cluster.access import NEEDED, NO_SUBMISSIONS, RENEWAL, Access, Keys, keys_of, needed
from entrypoint.cluster.access import TOKEN as CHANGE
from entrypoint.commands import cli
from entrypoint.commands.arguments import NEEDED as OF_COMMANDS
from entrypoint.config.read import read_settings
from entrypoint.net.paths import CERTIFICATE
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head
from tests.support.job_head import JobHead, until_stopped
from tests.support.repository import ROOT

DERIVED = {
    Access.READ: run_token.read_only(TOKEN),
    Access.OPERATE: run_token.for_page(TOKEN),
    Access.SUBMIT: run_token.for_submit(TOKEN),
}
KEYS = {Access.NONE: "no-key-of-this-run", **DERIVED, Access.ALL: TOKEN}
NAMES = {"–": 0, "read": Access.READ, "operator": Access.OPERATE, "submit": Access.SUBMIT}
OTHERS = (401, 403)


def routes(head: Head) -> set[tuple[str, str]]:
    """The methods and paths that the server has, and the form that signs in before them."""
    found = {(m, route.path) for route in head.control._routes() for m in route.methods or ()}
    return {one for one in found if one[0] != "HEAD"} | {("POST", "/")}


def test_the_table_has_every_path_and_no_other(head: Head) -> None:
    assert routes(head) == set(NEEDED)


def test_the_reference_says_which_key_each_path_needs() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    rows = re.findall(r"^\| (`(?:GET|POST|PUT) /.*?) \| (\S+) \|", page, re.MULTILINE)
    said = {
        (method, re.sub("ID", "{job}", re.sub("NAME", "{name}", path))): NAMES.get(key, Access.ALL)
        for cell, key in rows
        for method, path in re.findall(r"`([A-Z]+) (/[^`?]*)", cell)
    }
    assert said == dict(NEEDED)


def test_each_path_opens_to_its_key_and_stronger_ones_alone(head: Head) -> None:
    for (method, template), need in NEEDED.items():
        path = re.sub(r"\{\w+\}", "job-1", template)
        if (method, path) == ("POST", "/"):
            continue  # its key is in the form
        if path == CHANGE:
            continue  # last: afterwards all these keys are of no use
        for access, key in KEYS.items():
            answer = head.status(method, path, key)
            expected = 401 if access is Access.NONE else 403
            opens = access >= need and path != RENEWAL  # which no key of the run opens
            expected = 401 if path == RENEWAL else expected
            assert (answer not in OTHERS) == opens, (method, path, access, answer)
            assert opens or answer == expected, (method, path, access, answer)
    assert len(head.heard.stops) == 3  # with three of the five keys
    for access, key in KEYS.items():  # the token comes last
        expected = {Access.NONE: 401, Access.ALL: 200}.get(access, 403)
        assert head.status("POST", CHANGE, key) == expected


def spelled(path: str, how: str) -> str:
    """Another spelling of a path, which a server might take for the same."""
    last = path.rsplit("/", 1)[-1]
    return {
        "plain": path,
        "slash": f"{path}/",
        "doubled": path.replace("/", "//"),
        "dots": f"/v1/..{path}",
        "encoded": path.replace(last, "".join(f"%{ord(one):02x}" for one in last)),
        "all": quote(path, safe="").replace("%2F", "/%2e/"),
        "query": f"{path}?x=1",
        "matrix": f"{path};a=b",
        "capitals": path.upper(),
        "absolute": f"http://127.0.0.1{path}",
        "tail": f"{path}/x/../",
    }[how]


SPELLINGS = (
    *("plain", "slash", "doubled", "dots", "encoded", "all", "query", "matrix", "capitals"),
    *("absolute", "tail"),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "post", "QUERY")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    route=st.sampled_from(sorted(NEEDED)),
    method=st.sampled_from(METHODS),
    how=st.sampled_from(SPELLINGS),
    access=st.sampled_from(list(KEYS)),
    override=st.sampled_from(["", "GET", "POST"]),
)
def test_no_path_opens_to_a_weaker_key_however_it_is_spelled(
    head: Head, route: tuple[str, str], method: str, how: str, access: Access, override: str
) -> None:
    path = spelled(re.sub(r"\{\w+\}", "job-1", route[1]), how)
    headers = {"Authorization": f"Bearer {KEYS[access]}", "X-HTTP-Method-Override": override}
    if path.startswith(CHANGE) and access is Access.ALL:
        return
    before = len(head.heard.stops)
    connection = http.client.HTTPConnection("127.0.0.1", head.port, timeout=10)
    try:
        connection.request(method, path, body=b"{}", headers=headers)
        answer = connection.getresponse().status
    finally:
        connection.close()
    if access < Access.OPERATE:
        assert len(head.heard.stops) == before
    if access < Access.ALL:
        assert (head.heard.check_ins, head.heard.token_changed_for) == ([], None)
    if access is Access.NONE and answer < 300:
        assert how == "query" or path.endswith(("/healthz", CERTIFICATE)), (method, path)
        assert needed(method.upper(), path.partition("?")[0]) is Access.NONE
    if access is Access.READ and answer < 300:
        assert method in ("GET", "HEAD"), (method, path)


def test_a_key_answers_with_itself_and_weaker_ones_and_never_with_the_token(head: Head) -> None:
    names = {"read": Access.READ, "operator": Access.OPERATE, "submit": Access.SUBMIT}
    for access, key in KEYS.items():
        if access:
            known = {name: DERIVED[duty] for name, duty in names.items() if duty <= access}
            assert head.get("/v1/keys", key).json() == known
    browser = httpx.Client(base_url=f"http://127.0.0.1:{head.port}")
    assert browser.get(f"/?token={TOKEN}").is_success
    assert browser.get("/v1/keys").status_code == 403
    assert "read_key" not in browser.get("/v1/state").json()


def test_given_keys_take_the_place_of_derived_ones() -> None:
    given = {
        "ROLLCALL_READ_KEY": "of-those-who-look",
        "ROLLCALL_OPERATOR_KEY": "of-those-who-stop",
        "ROLLCALL_SUBMIT_KEY": "of-those-who-run-programs",
    }
    keys = keys_of(read_settings(given), TOKEN)
    assert [keys.access(text) for text in given.values()] == [1, 2, 3]
    assert [keys.access(text) for text in DERIVED.values()] == [Access.NONE] * 3
    assert keys.access(TOKEN) is Access.ALL
    assert keys.for_browser(Access.ALL) == "of-those-who-stop"
    same = read_settings({**given, "ROLLCALL_READ_KEY": "of-those-who-run-programs"})
    with pytest.raises(ConfigError, match=r"READ_KEY.* is the same as ROLLCALL_SUBMIT_KEY"):
        keys_of(same, TOKEN)
    with pytest.raises(ConfigError, match=r"SUBMIT_KEY.* is the same as the run's token"):
        keys_of(read_settings(given), "of-those-who-run-programs")


def rollcall(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    with monkeypatch.context() as patch:
        for name, text in environ.items():
            patch.setenv(name, text)
        patch.setattr("sys.argv", ["rollcall", *words])
        return main()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JobHead]:
    with JobHead(tmp_path, sleep=until_stopped) as head:
        yield head


COMMANDS = {
    "list": (),
    "status": (),
    "wait": ("--timeout", "0.1"),
    "open": ("--no-browser",),
    "logs": (),
    "events": (),
    "submit": ("--no-wait", "--", "true"),
    "pipeline": ("--no-wait",),
    "stop": (),
    "rotate-token": (),
}


def test_each_command_takes_its_key_and_stronger_ones_and_names_it(
    cluster: JobHead,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = tmp_path / "stages.yaml"
    stages.write_text('stages:\n- name: one\n  job: ["true"]\n')
    assert set(COMMANDS) == set(cli.REMOTE)
    for command, words in COMMANDS.items():
        words = (*words, str(stages)) if command == "pipeline" else words
        for access, key in KEYS.items():
            environ = {**cluster.environment, "ROLLCALL_TOKEN": key}
            code = rollcall(environ, monkeypatch, command, *words)
            said = capsys.readouterr()
            need = OF_COMMANDS[command]
            stronger = "" if need is Access.ALL else ", or a stronger one"
            assert (code == ExitCode.NOT_ALLOWED) == (access < need), (command, access, said)
            if Access.NONE < access < need:
                assert f"this needs {need.key}{stronger}, and {access.key}" in said.err
            links = re.findall(r"/\?\S+", said.out)
            assert all(f"?read={DERIVED[Access.READ]}" in link for link in links), said.out


def test_a_cluster_without_submissions_takes_no_job_even_with_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = JobHead(tmp_path)
    head.head.keys.takes_jobs = keys_of(read_settings({"ROLLCALL_SUBMIT": "0"}), TOKEN).takes_jobs
    with head:
        for key in (TOKEN, DERIVED[Access.SUBMIT]):
            environ = {**head.environment, "ROLLCALL_TOKEN": key}
            code = rollcall(environ, monkeypatch, "submit", "--no-wait", "--", "true")
            assert (code, NO_SUBMISSIONS in capsys.readouterr().err) == (ExitCode.USAGE, True)
            assert rollcall(environ, monkeypatch, "open", "--key", "submit") == 77
            assert "takes no jobs" in capsys.readouterr().err
        assert head.ran == []


def test_the_keys_of_a_token_say_nothing_of_stronger_ones() -> None:
    keys = Keys(TOKEN)
    texts = list(KEYS.values())
    assert len({*texts}) == len(texts)
    for text in DERIVED.values():
        for make in (run_token.for_page, run_token.for_submit):
            if make(text) != text:
                assert keys.access(make(text)) is Access.NONE
