"""MIG devices in `gpuslice up`: the pods of the AKS article, and what they see of their devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from up_world import Kubectl, cluster_of, file

from gpuslice.devices.found import FoundGpu

pytestmark = pytest.mark.timeout(90)

CUT = "{model: A100-40, mig: [1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb, 1g.5gb]}"
NODES = file(
    f"{{name: single, migStrategy: single, gpus: [{CUT}, {CUT}]}}, "
    "{name: mixed, migStrategy: mixed, gpus: [{model: A100-40, mig: [3g.20gb, 2g.10gb]}, {model: T4}]}"
)


async def start(kubectl: Kubectl, name: str, node: str, limits: Mapping[str, int]) -> str:
    """What `nvidia-smi -L` prints in a pod with these limits."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "c", "image": "cuda", "resources": {"limits": limits}}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    await kubectl("apply", "-f", "-", stdin=json.dumps(body))
    await kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=20s")
    return await kubectl("exec", name, "--", "nvidia-smi", "-L")


def line(gpu: FoundGpu, index: int = 0) -> str:
    return f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})\n"


async def test_nvidia_smi_shows_a_container_its_mig_devices_and_no_others(tmp_path: Path) -> None:
    async with cluster_of(NODES, tmp_path) as (cluster, kubectl):
        machine = cluster.drivers["single"].query()
        owners = {mig.uuid: gpu for gpu in machine.gpus for mig in gpu.mig_devices}
        seen = set()
        for name in ("one", "two"):
            printed = await start(kubectl, name, "single", {"nvidia.com/gpu": 1})
            (uuid,) = re.findall(r"MIG-[-0-9a-f]+", printed)
            assert printed == line(owners[uuid]) + f"  MIG 1g.5gb      Device  0: (UUID: {uuid})\n"
            env = await kubectl("exec", name, "--", "env")
            assert f"NVIDIA_VISIBLE_DEVICES={uuid}\n" in env
            seen.add(uuid)
        assert len(seen) == 2
        assert (await start(kubectl, "twelve", "single", {"nvidia.com/gpu": 12})).count("  MIG 1g.5gb ") == 12

        partitioned, unpartitioned = cluster.drivers["mixed"].query().gpus
        large, small = partitioned.mig_devices
        assert await start(kubectl, "small", "mixed", {"nvidia.com/mig-2g.10gb": 1}) == (
            line(partitioned) + f"  MIG {small.profile}     Device  0: (UUID: {small.uuid})\n"
        )
        assert await start(kubectl, "large", "mixed", {"nvidia.com/mig-3g.20gb": 1}) == (
            line(partitioned) + f"  MIG {large.profile}     Device  0: (UUID: {large.uuid})\n"
        )
        assert await start(kubectl, "share", "mixed", {"aliyun.com/gpu-mem": 3}) == line(unpartitioned)
        asked = await kubectl.run("exec", "share", "--", "sh", "-c", "nvidia-smi --query-gpu=name")
        assert asked.code == 2
        assert asked.err.startswith("this is gpuslice's stand-in for nvidia-smi")
