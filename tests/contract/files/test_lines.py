"""Lines of a long file: from both ends the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.files import lines


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(content=st.binary(max_size=60).map(lambda b: b.replace(b"\x00", b"\n")), block=st.just(7))
def test_backwards_come_the_lines_that_come_forwards(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block: int
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patched, path.open("rb") as file:
        patched.setattr(lines, "BLOCK", block)
        there = list(lines.forwards(file))
        assert [*lines.backwards(file, incomplete=True)] == there[::-1]
        whole = [one for one in there if one[1].endswith(b"\n")]
        assert [*lines.backwards(file)] == whole[::-1]
        assert b"".join(line for _, line in there) == content
