"""The layouts that a run keeps, of any bytes and shapes."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from contract.resources import NodeResources
from entrypoint.run import kept_layouts
from entrypoint.run.kept_layouts import KeptLayout
from tests.support.damage import damaged

KEPT = KeptLayout(("--actor_num_nodes", "2"), ("two nodes are there",))
ROWS = {
    "a": {
        "words": list(KEPT.words),
        "reasons": list(KEPT.reasons),
        "crc": kept_layouts._checksum({"words": KEPT.words, "reasons": KEPT.reasons}),
    }
}


def test_a_layout_that_was_kept_stays(tmp_path: Path) -> None:
    path = tmp_path / ".layouts"
    assert not kept_layouts.keep(path, "a", KEPT)
    assert not kept_layouts.keep(path, "a", KeptLayout(("--zero_stage", "3"), ()))
    assert kept_layouts.keep(path, "b", KeptLayout(("--zero_stage", "3"), ()))
    assert kept_layouts.read(path)["a"] == KEPT
    assert json.loads(path.read_text())["a"] == ROWS["a"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(ROWS))
def test_a_damaged_layout_is_as_if_none_was_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ".layouts"
    path.write_bytes(content)
    assert set(kept_layouts.read(path).values()) <= {KEPT}
    kept_layouts.keep(path, "another", KEPT)
    assert kept_layouts.read(path)["another"] == KEPT


def test_the_order_of_the_nodes_and_their_names_make_no_other_key() -> None:
    one, other = NodeResources(name="a", gpus=8), NodeResources(name="b", gpus=4)
    turned = (NodeResources(name="c", gpus=4), NodeResources(name="d", gpus=8))
    assert kept_layouts.key_of({"x": "1"}, (one, other)) == kept_layouts.key_of({"x": "1"}, turned)
    assert kept_layouts.key_of({"x": "2"}, turned) != kept_layouts.key_of({"x": "1"}, turned)
    assert kept_layouts.key_of({"x": "1"}, (one,)) != kept_layouts.key_of({"x": "1"}, turned)
