"""The prompts of several data sets: OpenRLHF's rows, in OpenRLHF's order before it shuffles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from env.data.prompts import PromptStream, ReadSettings
from tests.oracles.process import Peers


@pytest.mark.parametrize(
    ("shares", "seed", "most"),
    [
        (None, 42, 1000),
        (None, 42, 20),
        ("0.5,0.3,0.2", 42, 1000),
        ("0.7,0.2,0.1", 7, 1000),
        ("0.7,0.2,0.1", 7, 20),
    ],
)
def test_the_rows_and_their_order_are_openrlhf_s(
    peers: Peers, tmp_path: Path, shares: str | None, seed: int, most: int
) -> None:
    files = []
    for name, size in (("a", 40), ("b", 15), ("c", 25)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"input": f"{name}{n}"}) + "\n" for n in range(size)))
        files.append(file)
    wanted = {"datasets": ",".join(map(str, files)), "shares": shares, "seed": seed, "most": most}
    theirs = peers._call("openrlhf_data", "blended", wanted)
    numbers = [float(share) for share in shares.split(",")] if shares else []
    ours = PromptStream(files, ReadSettings(max_samples=most), seed=seed, shares=numbers).prompts
    assert [prompt.text for prompt in ours] == theirs
