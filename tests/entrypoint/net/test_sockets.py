"""What the address that a check-in comes from says of the node."""

from __future__ import annotations

import pytest

from entrypoint.net.sockets import peer_address


@pytest.mark.parametrize(
    ("source", "address", "telling"),
    [
        ("10.0.0.9", "10.0.0.2", "10.0.0.9"),
        ("::ffff:10.0.0.9", "10.0.0.2", "10.0.0.9"),
        ("127.0.0.1", "10.0.0.2", ""),
        ("10.0.0.9", "127.0.0.3", ""),
        ("fd00::1", "10.0.0.2", ""),
        ("10.0.0.9", "worker-1.local", ""),
    ],
)
def test_where_a_connection_comes_from_says_something_between_machines(
    source: str, address: str, telling: str
) -> None:
    assert peer_address(source, address) == telling
