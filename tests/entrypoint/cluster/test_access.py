"""Which key opens what at the head's HTTP, and what a browser gets, over real connections."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from contract.exit_codes import ExitCode
from contract.journal import EventSource, append_event
from contract.options import ConfigError
from contract.progress import Progress
from contract.redaction import redact
from entrypoint.cluster import browser
from entrypoint.cluster.access import Access, Keys, page_link
from entrypoint.cluster.server import HeadPhase
from entrypoint.cluster.trust import WrongTokenError
from entrypoint.commands import ask_head
from entrypoint.commands.arguments import parse
from entrypoint.commands.head_client import NoAnswerError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import Settings
from entrypoint.run import token as run_token
from tests.support.control import TOKEN, Head, node_info

READ_KEY = run_token.read_only(TOKEN)
PAGE_KEY = run_token.for_page(TOKEN)
HTML = {"Accept": "text/html"}


def visit(head: Head) -> httpx.Client:
    """A browser that has no key yet."""
    return httpx.Client(base_url=f"http://127.0.0.1:{head.port}", headers=HTML)


def signed_in(head: Head, key: str) -> httpx.Client:
    browser = visit(head)
    assert browser.get(f"/?token={key}").is_success
    return browser


def test_the_read_only_key_reads_and_neither_stops_nor_joins(head: Head) -> None:
    assert head.get("/v1/state", READ_KEY).json()["head"] == "head"
    assert "rollcall_expected_workers 2.0" in head.get("/metrics", READ_KEY).text
    client = head.client(READ_KEY)
    for call in (
        lambda: client.command("POST", "/v1/stop"),
        lambda: client.command("GET", "/v1/outcome", params={"node": "a", "oom_kills": 0}),
        lambda: client.command("POST", "/v1/jobs", json={"job": ["true"]}),
        lambda: client.check_in(node_info("a")),
    ):
        with pytest.raises(WrongTokenError, match="and the read-only key was given"):
            call()
    assert (head.heard.stops, head.heard.check_ins) == ([], [])


def test_the_read_only_key_is_one_of_its_run_and_says_nothing_of_the_token() -> None:
    assert re.fullmatch(r"rollcall-read-[0-9a-f]{48}", READ_KEY)
    assert run_token.read_only(f"{TOKEN}2") != READ_KEY
    assert run_token.read_only(READ_KEY) == READ_KEY  # of one who has only this one
    assert run_token.read_only(PAGE_KEY) == READ_KEY
    assert run_token.for_page(READ_KEY) != PAGE_KEY
    assert Keys(TOKEN).access(READ_KEY) is Access.READ
    assert Keys(TOKEN).access(PAGE_KEY) is Access.OPERATE
    assert Keys(TOKEN).access("") is Access.NONE


def test_a_log_may_hold_the_link_whole_and_no_link_with_the_token() -> None:
    link = page_link("http://10.0.0.2:8267/", READ_KEY)
    assert link == f"http://10.0.0.2:8267/?read={READ_KEY}"
    assert redact(f"the run's page: {link}", {TOKEN}) == f"the run's page: {link}"
    controls = page_link("http://10.0.0.2:8267", PAGE_KEY, controls=True)
    assert controls == f"http://10.0.0.2:8267/#token={PAGE_KEY}"
    assert PAGE_KEY not in redact(controls)
    of_job = page_link("http://10.0.0.2:8267", PAGE_KEY, controls=True, job="job-1")
    assert of_job == f"http://10.0.0.2:8267/?run=job-1#token={PAGE_KEY}"


@pytest.mark.parametrize(
    "start", [run_token.for_head, lambda given: run_token.for_worker(given, threading.Event())]
)
@pytest.mark.parametrize("key", [READ_KEY, PAGE_KEY])
def test_no_node_starts_with_a_key_of_the_page(start: Callable[[Settings], str], key: str) -> None:
    with pytest.raises(ConfigError, match="starts no node"):
        start(read_settings({"ROLLCALL_TOKEN": key, "HEAD_POD_ID": "x"}))


def test_a_command_with_a_read_only_key_shows_the_state_and_does_not_stop(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{head.port}"
    settings = read_settings({"ROLLCALL_URL": url, "ROLLCALL_TOKEN": READ_KEY})
    assert ask_head.status(settings, parse("status", [])) == 0
    assert f"the page, to read only: {url}/?read={READ_KEY}" in capsys.readouterr().out
    with pytest.raises(NoAnswerError, match="needs the operator key, or a stronger one") as caught:
        ask_head.stop(settings, parse("stop", []))
    assert caught.value.exit_code == ExitCode.NOT_ALLOWED


def test_status_says_the_attempt_its_failures_the_last_checkpoint_and_the_warnings(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(step=5, total_steps=9, attempt=1, checkpoint=4, tokens_per_second=7.0).write(
        head.run.progress
    )
    for kind, details, number in (
        ("attempt", {}, 1),
        ("failure", {"failure": "hang"}, 1),
        ("attempt", {}, 2),
    ):
        source = EventSource(attempt=number)
        append_event(head.run.journal, kind, f"{kind}!", details, source=source)
    finding = {"gpu.clock": "900 MHz: look at its cooling"}
    for name in ("gpu-1", "gpu-2"):
        slow = replace(node_info(name), warnings=("gpu.clock",), findings=finding, joined=True)
        head.control._registry.check_in(slow, "")
    head.control.phase = HeadPhase.TRAINING
    url = f"http://127.0.0.1:{head.port}"
    settings = read_settings({"ROLLCALL_URL": url, "ROLLCALL_TOKEN": READ_KEY})
    assert ask_head.status(settings, parse("status", [])) == 0
    said = capsys.readouterr().out.splitlines()
    assert "attempt 2: starting, no step yet, 1 failure so far, checkpoint of step 4" in said
    assert "step 5/9" in said
    assert "warning: gpu-1, gpu-2: 900 MHz: look at its cooling" in said


def test_status_says_for_how_long_a_command_runs_that_tells_no_steps(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EventSource(attempt=1)
    append_event(head.run.journal, "attempt", "it starts", {"tells_steps": False}, source=source)
    head.control.phase = HeadPhase.TRAINING
    url = f"http://127.0.0.1:{head.port}"
    settings = read_settings({"ROLLCALL_URL": url, "ROLLCALL_TOKEN": READ_KEY})
    assert ask_head.status(settings, parse("status", [])) == 0
    said = capsys.readouterr().out
    assert said.startswith("head: running;")
    assert re.search(r"^attempt 1: running for [0-9.]+ s; it tells no steps$", said, re.MULTILINE)
    Progress(step=7, attempt=1, is_logged=True).write(head.run.progress)
    assert ask_head.status(settings, parse("status", [])) == 0
    said = capsys.readouterr().out
    assert "\nstep 7\n" in said
    assert "checkpoint" not in said, "the job alone knows whether it has any"


@pytest.mark.parametrize(
    ("name", "key"), [("token", TOKEN), ("token", PAGE_KEY), ("read", READ_KEY)]
)
def test_the_first_load_takes_the_key_out_of_the_address_and_into_a_cookie(
    head: Head, name: str, key: str
) -> None:
    browser = visit(head)
    first = browser.get(f"/?{name}={key}")
    assert 'content="0; url=./"' in first.text
    (cookie,) = first.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # over http a browser would drop it
    assert TOKEN not in cookie
    assert '<ol id="events">' in browser.get("/").text
    assert browser.get("/v1/state").json()["head"] == "head"


def test_the_first_load_goes_on_to_the_run_that_the_link_names_and_to_no_other_host(
    head: Head,
) -> None:
    answer = visit(head).get("/", params={"read": READ_KEY, "run": 'job-1"><a href="//x'})
    assert 'content="0; url=./#run=job-1%22%3E%3Ca+href%3D%22%2F%2Fx"' in answer.text


def test_behind_tls_the_cookie_is_secure(head: Head) -> None:
    forwarded = {"X-Forwarded-Proto": "https"}
    answer = visit(head).get(f"/?token={TOKEN}", headers=forwarded)
    assert "Secure" in answer.headers["set-cookie"]


def test_a_browser_without_a_key_gets_a_form_which_takes_one(head: Head) -> None:
    browser = visit(head)
    asked = browser.get("/")
    assert asked.status_code == 401
    assert '<form method="post" action="./">' in asked.text
    assert "not of this run" not in asked.text
    wrong = browser.post("/", data={"token": "<script>alert(1)</script>"})
    assert wrong.status_code == 401
    assert "That key is not of this run." in wrong.text
    assert "alert(1)" not in wrong.text
    assert browser.get("/v1/state").status_code == 401
    assert browser.post("/", data={"token": f" {READ_KEY} "}).is_success
    assert browser.get("/v1/state").is_success


@pytest.mark.parametrize("body", [b"", b"\xff", b"token=" + b"x" * 5000])
def test_the_form_takes_no_other_body(head: Head, body: bytes) -> None:
    answer = visit(head).post("/", content=body)
    assert (answer.status_code, "<form" in answer.text) == (401, True)


def test_a_program_without_a_key_gets_json_and_no_form(head: Head) -> None:
    answer = httpx.get(f"http://127.0.0.1:{head.port}/")
    assert (answer.status_code, answer.json()) == (401, {"error": "wrong or missing token"})


OWN, OTHER = "http://127.0.0.1:{port}", "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("key", "headers", "status"),
    [
        (TOKEN, {"Origin": OWN}, 202),
        (PAGE_KEY, {"Origin": OWN}, 202),
        (TOKEN, {"Sec-Fetch-Site": "same-origin", "Origin": "https://proxy"}, 202),
        (TOKEN, {"Origin": OTHER}, 403),  # another port of the same host gets the cookie, too
        (TOKEN, {"Sec-Fetch-Site": "same-site", "Origin": OTHER}, 403),
        (TOKEN, {}, 403),
        (READ_KEY, {"Origin": OWN}, 403),
    ],
)
def test_only_the_runs_own_page_with_the_runs_token_stops_it(
    head: Head, key: str, headers: dict[str, str], status: int
) -> None:
    given = {name: value.format(port=head.port) for name, value in headers.items()}
    assert signed_in(head, key).post("/v1/stop", headers=given).status_code == status
    assert len(head.heard.stops) == (status == 202)


def test_a_browsers_cookie_submits_no_job(head: Head) -> None:
    browser = signed_in(head, TOKEN)
    given = {"Origin": f"http://127.0.0.1:{head.port}"}
    answer = browser.post("/v1/jobs", json={"job": ["true"]}, headers=given)
    assert answer.status_code == 403


def test_only_code_of_the_page_itself_runs_and_no_answer_is_kept_or_taken_for_html(
    head: Head,
) -> None:
    append_event(head.run.journal, "start", "<img src=x onerror=alert(1)>")
    head.run.logs.mkdir(exist_ok=True)
    (head.run.logs / "head.log").write_text("<script>alert(1)</script>")
    browser = signed_in(head, TOKEN)
    for path in ("/", "/healthz", "/v1/state", "/v1/logs/head", "/metrics", "/none", "/?token=no"):
        answer = browser.get(path)
        headers = answer.headers
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        is_html = headers["content-type"].startswith("text/html")
        assert is_html == (path in ("/", "/?token=no"))


def test_the_policy_allows_each_script_and_style_of_a_page_by_its_hash() -> None:
    page = "<style>\nb { color: red }</style><script>alert('ours')</script>"
    policy = browser.policy(page)
    for kind, code in (("style", "\nb { color: red }"), ("script", "alert('ours')")):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "script-src 'none'" in browser.policy("<p>no code</p>")


@pytest.mark.parametrize("page", [browser.PAGE, browser.FORM])
def test_no_page_has_code_that_the_policy_forbids_or_loads_from_elsewhere(page: str) -> None:
    assert re.findall(r"\son\w+\s*=\s*[\"']|\sstyle\s*=|innerHTML|javascript:", page) == []
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page) == []
