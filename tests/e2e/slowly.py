"""A TCP proxy that delivers every byte late, in both directions: PORT HOST PORT SECONDS."""

from __future__ import annotations

import asyncio
import sys


async def main(port: int, host: str, to: int, seconds: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, to)
        await asyncio.gather(late(reader, back, seconds), late(there, writer, seconds))

    async with await asyncio.start_server(accept, "127.0.0.1", port) as server:
        await server.serve_forever()


async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Late, but not narrow: what was sent at once arrives at once."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                writer.close()
                return
            writer.write(data)

    delivery = asyncio.create_task(deliver())
    try:
        while data := await reader.read(65536):
            under_way.put_nowait((loop.time() + seconds, data))
    except ConnectionError:
        pass
    under_way.put_nowait((loop.time() + seconds, b""))
    await delivery


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
