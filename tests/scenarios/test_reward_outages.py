"""A reward server that fails in every way, in the middle of a run: the run is the same without."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

from contract.journal import journal_writer
from env.registry import reward_function
from tests.support.saved_states import leaves_of
from tests.support.scripted_server import ScriptedServer
from tests.support.tiny_run import Tiny, events, train

FAULTS: list[tuple[int, Any] | None] = [
    (500, b"out of memory"),
    (200, b"<html>starting</html>"),
    (200, {"rewards": [1.0]}),
    (200, {"rewards": [float("nan")] * 8}),
    None,
]
"""One at the beginning of each step but the last; None: no answer for a while."""


def test_a_run_whose_reward_server_fails_in_every_way_ends_as_if_it_never_did(
    tiny: Tiny, run_dir: Path
) -> None:
    release, faults = threading.Event(), iter(FAULTS)
    failed_before = True

    def now_and_then(number: int, body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal failed_before
        failed_before = not failed_before
        fault = next(faults, (200, right(body))) if not failed_before else (200, right(body))
        if fault is None:
            release.wait(10)
        return fault or (200, right(body))

    flags = {"max_steps": 6, "save_steps": 6}
    disturbed = tiny.config(run_dir / "disturbed", **flags)
    alone = tiny.config(run_dir / "alone", **flags)
    servers = [ScriptedServer(now_and_then), ScriptedServer(lambda _, body: (200, right(body)))]
    try:
        for server, config in zip(servers, (disturbed, alone), strict=True):
            config.files.root.mkdir(parents=True)
            tell = partial(journal_writer(config.files.journal), "reward-server")
            train(config, reward_function(server.url, timeout=2.0, deadline=20, tell=tell))
    finally:
        release.set()
        for server in servers:
            server.close()
    assert len(servers[0].bodies) == 6 + len(FAULTS)
    assert leaves_of(disturbed, 6) == leaves_of(alone, 6)
    said = [event["sentence"] for event in events(disturbed, "reward-server")]
    assert said[0].startswith("Waiting for a reward, ")
    assert said[1].startswith("Rewards come again, after ")
    assert not events(alone, "reward-server")


def right(body: dict[str, Any]) -> dict[str, Any]:
    return {"rewards": [float(len(query) % 3) for query in body["query"]]}
