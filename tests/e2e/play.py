"""A real cluster to try things on by hand: `python -m tests.e2e.play`, Ctrl-C ends it."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from .cluster import RealCluster
from .packages import MissingError


def main() -> int:
    """Bring the cluster up, say how to reach it, and wait for Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes with a kubelet (2)")
    parser.add_argument(
        "--work", type=Path, help="folder for state and logs; kept (default: a temporary one, removed)"
    )
    parser.add_argument(
        "--image", type=Path, action="append", default=[], help="an image archive that the nodes get"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuslice-e2e-") as temporary:
        try:
            cluster = RealCluster(
                chosen.work or Path(temporary),
                nodes=chosen.nodes,
                images=[one.resolve() for one in chosen.image],
            )
        except MissingError as missing:
            print(missing, file=sys.stderr)
            return 1
        # Blocked before the programs start would be inherited; so only the wait is for signals, and both end it.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            with cluster:
                print(f"export KUBECONFIG={cluster.kubeconfig}")
                print(f"alias kubectl={cluster.programs / 'kubectl'} helm={cluster.programs / 'helm'}")
                for node in cluster.nodes:
                    print(f"# {node.name}: its own folders of /etc, /run and /var are under {node.work}")
                print(f"# logs: {cluster.work / 'logs'}; Ctrl-C ends it", flush=True)
                signal.pause()
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
