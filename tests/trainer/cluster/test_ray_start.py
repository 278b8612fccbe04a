"""Ray's command line without what only its other commands import."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trainer.cluster import ray_start

STARTED = """
import sys
from trainer.cluster import ray_start
sys.argv = ["ray", "start", "--help"]
try:
    ray_start.main()
except SystemExit as end:
    assert end.code == 0, end.code
heavy = {"pandas", "fastapi", "aiohttp", "ray.serve"} & sys.modules.keys()
assert not heavy, heavy
import ray.util.state.state_cli  # what was left out is there for others
"""


def test_ray_start_imports_nothing_of_ray_serve_and_of_data_frames() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--object-manager-port" in done.stdout


class Gcs:
    """Ray's GCS while its head starts."""

    def __init__(self, *answers: dict[str, str] | Exception) -> None:
        self._answers = list(answers)

    def get_all_node_info(self, **asked: Any) -> dict[str, str]:
        assert asked == {"timeout": 5, "node_selectors": ["head"]}
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_worker_asks_until_the_head_s_node_is_there() -> None:
    gcs = Gcs({}, RuntimeError("not yet"), {}, {"an id": "the head"})
    assert ray_start.head_nodes(gcs, timeout_per_retry=5, node_selectors=["head"]) == ["the head"]


def test_a_worker_that_finds_no_head_says_what_ray_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_start, "ASKED_SECONDS", 1e-9)
    with pytest.raises(ConnectionError, match=r"timed out.*names no head \(it has none\)"):
        ray_start.head_nodes(Gcs({}), ["head"])


def test_ray_s_start_asks_in_that_way() -> None:
    told = "from ray._private import node\nprint(node.get_all_node_info_until_retrieved.__module__)"
    patched = f"from trainer.cluster import ray_start\nray_start._find_the_head_sooner()\n{told}"
    done = subprocess.run(
        [sys.executable, "-c", patched], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "trainer.cluster.ray_start"
