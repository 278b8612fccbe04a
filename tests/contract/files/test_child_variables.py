"""Variables of the processes that a node starts."""

from __future__ import annotations

import rollcall_torch
from contract.files.child_variables import NODE_MARK
from contract.launch import rank_standing


def test_files_that_may_import_nothing_of_ours_name_the_same_mark() -> None:
    """Programs that know nothing of Rollcall load them."""
    assert rollcall_torch.MARK == rank_standing.MARK == NODE_MARK
