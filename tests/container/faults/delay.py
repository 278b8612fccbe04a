"""Passes TCP on to another host, every piece later than it came; for a container's command line.

python delay.py HOST SECONDS PORT...
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

PIECE = 65536


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """What comes leaves `delay` seconds later, in order, however much is on its way."""
    loop = asyncio.get_running_loop()
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def send() -> None:
        while True:
            due, piece = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    sending = asyncio.create_task(send())
    piece = b"-"
    while piece:
        piece = await reader.read(PIECE)
        on_the_way.put_nowait((loop.time() + delay, piece))
    await sending


async def serve(host: str, delay: float, ports: list[int]) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            pipe(reader, back, delay), pipe(there, writer, delay), return_exceptions=True
        )

    for port in ports:
        await asyncio.start_server(partial(meet, port=port), "0.0.0.0", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
