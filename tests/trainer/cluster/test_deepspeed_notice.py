"""DeepSpeed's notice about a missing GPU is left out where there is none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from trainer.cluster import deepspeed_notice


@pytest.mark.parametrize(("devices", "shown"), [([], False), (["nvidia0"], True)])
def test_it_is_shown_only_where_a_gpu_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str], shown: bool
) -> None:
    log = logging.getLogger("DeepSpeed")
    monkeypatch.setattr(log, "filters", [])
    for name in devices:
        (tmp_path / name).touch()
    deepspeed_notice.leave_out(tmp_path)
    known = (f"{deepspeed_notice.NOTICE}. If you have GPU", "something else")
    records = [log.makeRecord("", logging.WARNING, "", 0, text, (), None) for text in known]
    assert [bool(log.filter(record)) for record in records] == [shown, True]
