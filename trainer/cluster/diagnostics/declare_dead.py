"""Makes Ray mark nodes dead.

    python -m trainer.cluster.diagnostics.declare_dead --address HOST:PORT --why SENTENCE NODE…

Ray itself notices a dead node only after several missed health checks. A caller that knows it
earlier sends Ray's GCS the message with which a raylet unregisters. Ray then drops the actors,
tasks and objects of those nodes at once. NODE: Ray's id of the node.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

SECONDS = 10.0
"""Timeout of one message."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="+")
    parser.add_argument("--address", required=True)
    parser.add_argument("--why", required=True)
    options = parser.parse_args()
    for node in options.nodes:
        report(options.address, node, options.why)
    return 0


def report(address: str, node: str, why: str) -> None:
    """Tell Ray's GCS at `address` that a node is dead. Raises grpc.RpcError if it refuses."""
    # Ray's Python API has no such call.
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

    death: Any = common_pb2.NodeDeathInfo(
        reason=common_pb2.NodeDeathInfo.Reason.UNEXPECTED_TERMINATION, reason_message=why
    )
    request = gcs_service_pb2.UnregisterNodeRequest(
        node_id=bytes.fromhex(node), node_death_info=death
    )
    with init_grpc_channel(address) as channel:
        gcs = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        asked = gcs_service_pb2.CheckAliveRequest(node_ids=[request.node_id])
        # Of a node that the GCS has found dead itself, it would never answer.
        if any(gcs.CheckAlive(asked, timeout=SECONDS).raylet_alive):
            gcs.UnregisterNode(request, timeout=SECONDS)


if __name__ == "__main__":
    sys.exit(main())
