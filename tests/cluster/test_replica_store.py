"""A holder as an actor of a real Ray."""

from __future__ import annotations

import socket
from dataclasses import replace

import numpy as np
import pytest
import ray

from tests.support.ray_nodes import cluster_of
from tests.support.sheets import sheet_of
from trainer.checkpoint import replica_ring
from trainer.checkpoint.replica_store import view
from trainer.cluster.shared_memory import Segment
from trainer.cluster.tcp_stream import SECRET_BYTES, Server, StreamSource

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def test_a_holder_says_what_it_has_and_receives_more_while_a_share_does_not_come() -> None:
    """As where the network of a rank's node is cut in the middle of it."""
    segment = Segment(99)
    view(segment)[:] = np.arange(99)
    older, lost = sheet_of(segment, 1), sheet_of(segment, 2)
    came = replace(lost, rank=0)
    with socket.create_server(("127.0.0.1", 0)) as listener, cluster_of({"num_cpus": 1}):
        host, port = listener.getsockname()
        silent = StreamSource(host, port, bytes(SECRET_BYTES))
        ((_, holder),) = replica_ring.build("a run", ray.nodes(), memory=1, goes_on=False)
        replica_ring.answer(holder.attach.remote(older, segment.address))
        waits = replica_ring.receive(holder, lost, silent)
        connection, _ = listener.accept()
        with connection:
            assert ray.get(holder.manifests.remote(), timeout=30) == [older]
            server = Server(segment.buffer, port=0)
            ray.get(replica_ring.receive(holder, came, server.source), timeout=30)
            assert ray.get(holder.manifests.remote(), timeout=30) == [older, came]
            assert ray.wait([waits], timeout=0)[0] == []
        replica_ring.release("a run")
