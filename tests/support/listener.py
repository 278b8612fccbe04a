"""Who listens on the network: all packets of loopback, as whoever sees a real network's."""

from __future__ import annotations

import ctypes
import re
import socket
import struct
import threading
from collections import Counter
from types import TracebackType

KEY = re.compile(rb"(?<![0-9a-f])[0-9a-f]{48}(?![0-9a-f])")
"""A token that a run has made, or what follows the name of a derived key."""
IPV4 = 0x0800
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
BUFFER_BYTES = 2**26
PACKET_BYTES = 2**17


class Listener:
    """Start with `with`. Raises PermissionError without CAP_NET_RAW."""

    def __init__(self, ports: range) -> None:
        """`ports`: those whose packets it hears, of either side."""
        self.keys: dict[str, set[int]] = {}
        """What looks like a key → the ports from or to which it was sent."""
        self.packets: Counter[int] = Counter()
        """Packets with content from or to each port."""
        self._ports = ports
        self._ends = threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._attach(_of_ports(ports))
        self._socket.bind(("lo", IPV4))
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join()
        self._socket.close()

    def _attach(self, program: list[tuple[int, int, int, int]]) -> None:
        code = b"".join(struct.pack("HBBI", *step) for step in program)
        held = ctypes.create_string_buffer(code)
        given = struct.pack("HL", len(program), ctypes.addressof(held))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, given)

    def _listen(self) -> None:
        while not self._ends.is_set():
            try:
                packet = self._socket.recv(PACKET_BYTES)
            except TimeoutError:
                continue
            header = 4 * (packet[0] & 0xF)
            content = packet[header + 4 * (packet[header + 12] >> 4) :]
            if not content:
                continue
            ends = struct.unpack_from("!HH", packet, header)
            own = {port for port in ends if port in self._ports}
            self.packets.update(own)
            for found in KEY.findall(content):
                self.keys.setdefault(found.decode(), set()).update(own)


def _of_ports(ports: range) -> list[tuple[int, int, int, int]]:
    """Return a filter (classic BPF) of TCP packets from or to the ports; its offsets are of IP."""
    load_byte, load_half, header, equal, at_least, give = 0x30, 0x48, 0xB1, 0x15, 0x35, 0x06
    first, after = ports.start, ports.stop
    return [
        (load_byte, 0, 0, 9),
        (equal, 0, 7, socket.IPPROTO_TCP),
        (header, 0, 0, 0),
        (load_half, 0, 0, 0),
        (at_least, 0, 1, first),
        (at_least, 0, 4, after),
        (load_half, 0, 0, 2),
        (at_least, 0, 1, first),
        (at_least, 0, 1, after),
        (give, 0, 0, 0),
        (give, 0, 0, PACKET_BYTES),
    ]
