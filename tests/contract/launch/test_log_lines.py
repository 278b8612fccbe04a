"""The line on the end of a rank names the signal that its exit code tells."""

from __future__ import annotations

import pytest

from contract.launch.log_lines import ENDED_RANK, KILLED_RANK, ended_rank

OOM = ", often for lack of memory"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "ended with exit code 1"),
        (3, "ended with exit code 3"),
        (128, "ended with exit code 128"),
        (255, "ended with exit code 255"),
        (134, "was ended by SIGABRT (exit code 134)"),
        (135, "was ended by SIGBUS (exit code 135)"),
        (136, "was ended by SIGFPE (exit code 136)"),
        (137, f"was ended by SIGKILL (exit code 137){OOM}"),
        (139, "was ended by SIGSEGV (exit code 139)"),
        (143, "was ended by SIGTERM (exit code 143)"),
        (247, f"was ended by SIGKILL (exit code 247){OOM}"),
        (-9, f"was ended by SIGKILL{OOM}"),
        (-11, "was ended by SIGSEGV"),
        (-99, "was ended by signal 99"),
    ],
)
def test_an_exit_code_that_tells_a_signal_is_named_by_it(code: int, said: str) -> None:
    line = ended_rank("rank 1", "vm", code)
    assert line == f"rank 1 on vm {said}"
    assert ENDED_RANK.match(line)
    by_others = code in (134, 143)  # SIGABRT and SIGTERM follow what has happened elsewhere
    by_signal = "was ended by SIG" in said
    assert bool(KILLED_RANK.match(line)) is (by_signal and not by_others)
