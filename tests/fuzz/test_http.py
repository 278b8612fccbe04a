"""The HTTP servers answer any request as their OpenAPI descriptions say, with each key.

schemathesis makes the requests. `make fuzz` makes more of them than an ordinary run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from entrypoint.run import token as run_token
from env.prepare.__main__ import main as prepare
from tests.support import service_descriptions
from tests.support.control import TOKEN
from tests.support.fuzzing import CASES
from tests.support.job_head import JobHead, until_stopped

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = ROOT / ".schemathesis/bin/schemathesis"
pytestmark = [
    pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="make .schemathesis/.done"),
    pytest.mark.timeout(1800),
]
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "ignored_auth"),
)
REQUESTS = max(4, CASES // 1000)
"""Of each operation."""
IN_FAULTS = {"wrong", "operator", "submit", "token"}
"""Keys of a kind (none opens anything; a part is open; all) of which another one is not there."""
LIMITS = {"maxLength", "maxItems", "maxProperties"}
LEFT_OUT = "/v1/(events|token)$"
"""An answer without an end, and a change of the key of all other requests."""
KEYS: Mapping[str, str] = {
    "none": "",
    "wrong": "correct-horse",
    "read": run_token.read_only(TOKEN),
    "operator": run_token.for_page(TOKEN),
    "submit": run_token.for_submit(TOKEN),
    "token": TOKEN,
}


SERVICE_KEY = "the-key-of-all-services"
PAIRS = {("reward", ""), ("retrieval", SERVICE_KEY)}
"""In `make faults`; the others have each server and each key once."""


def small(schema: Any) -> Any:
    """Return a description whose values are short: hypothesis would take minutes to make them."""
    if isinstance(schema, dict):
        return {
            name: min(value, 20) if name in LIMITS else small(value)
            for name, value in schema.items()
        }
    return [*map(small, schema)] if isinstance(schema, list) else schema


def faults(url: str, described: Mapping[str, Any], key: str) -> str:
    """Return what schemathesis says of a server that answers otherwise; "" if it does not."""
    Path("openapi.json").write_text(json.dumps(small(described)))
    checks = [check for check in CHECKS if key or check != "ignored_auth"]
    phases = "coverage,fuzzing" if key == TOKEN or CASES else "fuzzing"
    options = ["--checks", ",".join(checks), "--max-examples", str(REQUESTS), "--phases", phases]
    options += ["--exclude-path-regex", LEFT_OUT, "--generation-database", "none", "--no-color"]
    options += ["--header", f"Authorization: Bearer {key}"] if key else []
    options += [] if CASES else ["--seed", "1"]
    done = subprocess.run(
        [SCHEMATHESIS, "run", "openapi.json", "--url", url, *options],
        env={**os.environ, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
    )
    return "" if done.returncode == 0 else done.stdout[-20_000:] + done.stderr[-2_000:]


@pytest.fixture
def job_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobHead]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "a.log").write_text("1\n")
    with JobHead(tmp_path / "run", sleep=until_stopped) as head:
        yield head


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(k, marks=pytest.mark.faults if k in IN_FAULTS else pytest.mark.slow)
        for k in KEYS
    ],
)
def test_a_head_answers_as_it_says(job_head: JobHead, key: str) -> None:
    described = job_head.head.get("/v1/openapi.json").json()
    assert not faults(f"http://127.0.0.1:{job_head.head.port}", described, KEYS[key])


@contextmanager
def started(*argv: str, key: str) -> Iterator[str]:
    """Start a server in a process of its own; yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", *argv, "--port", "0"],
        env={**os.environ, "ROLLCALL_SERVICE_KEY": key, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r" port (\d+)", one) for one in process.stderr)))
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text(json.dumps({"id": "0", "contents": "Aaron\nAaron is a prophet."}) + "\n")
    assert prepare(["index", "--corpus", str(corpus), "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param(
            name, key, marks=pytest.mark.faults if (name, key) in PAIRS else pytest.mark.slow
        )
        for name in service_descriptions.OF
        for key in ("", SERVICE_KEY)
    ],
)
def test_the_servers_of_rewards_and_passages_answer_as_their_protocols_say(
    index: Path, name: str, key: str
) -> None:
    argv = {
        "reward": ("env.server", "--task", "arithmetic"),
        "retrieval": ("env.retrieval.server", "--index", str(index), "--host", "0.0.0.0"),
    }
    with started(*argv[name], key=SERVICE_KEY) as url:
        assert not faults(url, service_descriptions.OF[name], key)
