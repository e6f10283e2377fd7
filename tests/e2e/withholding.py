"""A proxy to the API server, spoken to without TLS, that withholds the answers to lists of all pods until SIGUSR1: PORT
HOST PORT. When it does, it says so on its output.
"""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
import sys

LIST = re.compile(rb"GET /api/v1/pods(\?(?!\S*watch=)\S*)? ")


async def main(port: int, host: str, to: int) -> None:
    let_through = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, let_through.set)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, to, ssl=tls)
        lists = asyncio.Event()
        await asyncio.gather(asked(reader, back, lists), answered(there, writer, lists, let_through))

    async with await asyncio.start_server(accept, "127.0.0.1", port) as server:
        await server.serve_forever()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lists: asyncio.Event) -> None:
    """A client sends the head of a request at once, and waits for the answer before the next."""
    while data := await reader.read(65536):
        if LIST.match(data):
            lists.set()
        writer.write(data)
    writer.close()


async def answered(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    lists: asyncio.Event,
    let_through: asyncio.Event,
) -> None:
    while data := await reader.read(65536):
        if lists.is_set() and not let_through.is_set():
            print("the list of pods is withheld", flush=True)
            await let_through.wait()
        lists.clear()
        writer.write(data)
    writer.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
