"""Asks a kubelet over and over who holds which devices, as exporters of metrics do: SOCKET SECONDS."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from gpuslice.node.kubelet.rpc import PodResourcesClient, RpcError


async def main(socket: Path, pause: float) -> None:
    kubelet = PodResourcesClient(socket)
    while True:
        with contextlib.suppress(RpcError):  # it restarts, or has no time for us
            await kubelet.list()
        await asyncio.sleep(pause)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
