"""The traces of a tiny run, as a receiver of OTLP over HTTP gets them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.otlp_server import attributes, otlp_server
from tests.support.tiny_run import Tiny, metric_rows, train

FLAGS: dict[str, Any] = {"advantage_estimator": "group_norm", "init_kl_coef": 0}
PHASES = ("generate", "reward", "forward", "update", "publish")


def test_a_run_s_steps_are_traces_with_the_times_of_the_metrics(
    tiny: Tiny, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(run_dir, max_steps=2, save_steps=1, **FLAGS)
    with otlp_server() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        train(config)
    steps = collector.named("step")
    assert [attributes(span.attributes)["rollcall.step"] for span in steps] == [1, 2]
    for span, row in zip(steps, metric_rows(config), strict=True):
        inside = [one for one in collector.spans if one.trace_id == span.trace_id]
        assert Counter(one.name for one in inside) == dict.fromkeys(
            ("step", *PHASES, "checkpoint"), 1
        )
        assert attributes(span.attributes)["rollcall.reward"] == row["train/reward"]
        assert attributes(span.attributes)["rollcall.samples"] == 8
        took = {one.name: (one.end_time_unix_nano - one.start_time_unix_nano) for one in inside}
        for phase in PHASES:
            assert took[phase] / 1e9 == pytest.approx(row[f"timing/{phase}"], abs=1e-6)
