"""Variables that a node sets for the processes that it starts. A node itself ignores them."""

from __future__ import annotations

ATTEMPT = "ROLLCALL_ATTEMPT"
"""The number of the job's attempt, from 1. A program without it was started by no head."""
RESUME_FROM = "ROLLCALL_RESUME_FROM"
"""The step of the checkpoint from which the attempt goes on, if one is known."""
RESUME_CHECKPOINT = "ROLLCALL_RESUME_CHECKPOINT"
"""Variable of a script's ranks: the path of the checkpoint from which its Trainer goes on."""
LEASE, LEASE_HOLDER = "ROLLCALL_LEASE", "ROLLCALL_LEASE_HOLDER"
"""Give the lease and its holder to the driver of an attempt."""
NODE_MARK = "ROLLCALL_NODE_MARK"
"""Set in the environment of all that a node starts, and inherited by what those processes start.
By the mark a node finds its processes again, even after it was killed itself."""
NODE_OWNER = "ROLLCALL_NODE_OWNER"
"""Set beside the mark: the identity of the entrypoint that owns the process. When that entrypoint
is gone, the process is an orphan, and the next entrypoint with this mark ends it."""
NODE_DIR = "ROLLCALL_NODE_DIR"
"""Variable of Ray's processes if nodes do not share the run directory: the node's own one."""
FD_STORE = "ROLLCALL_FD_STORE"
"""Has the path of the socket of the node's store of descriptors."""
STARTED_BY = "ROLLCALL_STARTED_BY"
"""Has the command with which a person starts again the program that has started this node."""
ALL = (
    *(STARTED_BY, ATTEMPT, LEASE, LEASE_HOLDER, RESUME_FROM, RESUME_CHECKPOINT),
    *(NODE_MARK, NODE_OWNER, FD_STORE, NODE_DIR),
)
