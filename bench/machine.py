"""The facts without which a number means nothing."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path


def facts() -> dict[str, object]:
    """The machine, as far as the standard library can tell."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p99 and maximum in milliseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "p50_ms": round(ordered[last // 2] * 1000, 3),
        "p99_ms": round(ordered[int(last * 0.99)] * 1000, 3),
        "max_ms": round(ordered[-1] * 1000, 3),
        "n": len(ordered),
    }


def resident_mib(pid: int | None = None) -> int:
    """Resident memory of a process, MiB (Linux)."""
    pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 2**20


def report(name: str, result: dict[str, object]) -> None:
    """Print a result and write it to bench/results/NAME.json with the machine's facts."""
    document = {"benchmark": name, "machine": facts(), **result}
    text = json.dumps(document, indent=2)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(text + "\n")
    print(text)
