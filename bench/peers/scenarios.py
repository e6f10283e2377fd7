"""What is compared of the agent: machines, settings, and what happens to them in mid-life."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

A100 = "{model: A100-40, mig: [%s]}"


def a100s(count: int, *mig: str) -> str:
    """That many A100 of 40 GB; with `mig` all cut so."""
    one = A100 % ", ".join(mig) if mig else "{model: A100-40}"
    return mixed(*[one] * count)


def mixed(*gpus: str) -> str:
    return f"{{driverVersion: 550.163.01, cudaVersion: '12.4', gpus: [{', '.join(gpus)}]}}"


BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")
T4 = "{model: T4}"


@dataclass(frozen=True)
class Scenario:
    """A machine and settings. `now` and `kept`: the hardware's state before anybody starts,
    in the stand-in's lines; `later`: in mid-life. `config`: NVIDIA's configuration file.

    `resources`: how many resources are expected, to wait for. `asks`: (resource, places in the sorted ids).
    `prefers`: (resource, how many of the ids are free, size, places in these that it must have).
    `xids`: (number, GPU, GI, CI) in mid-life.
    """

    name: str
    machine: str
    env: dict[str, str] = field(default_factory=dict)
    resources: int = 1
    asks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    prefers: tuple[tuple[Any, ...], ...] = ()
    xids: tuple[tuple[int, ...], ...] = ()
    now: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    config: str = ""
    old_driver: bool = False
    no_library: bool = False
    labels: bool = True


GPU = "nvidia.com/gpu"
EIGHT = "8xA100-40"
SINGLE = {"MIG_STRATEGY": "single"}
MIXED = {"MIG_STRATEGY": "mixed"}
TWO = ((GPU, (0,)), (GPU, (3, 1)))

MISPLACED = """
version: v1
sharing:
  renameByDefault: true
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
"""
FLAGS = """
version: v1
flags:
  plugin: {deviceListStrategy: volume-mounts, deviceIDStrategy: index}
"""


def sliced(replicas: int, *more: str) -> str:
    """NVIDIA's file with time slicing."""
    lines = ["version: v1", "sharing:", "  timeSlicing:", *(f"    {line}" for line in more)]
    return "\n".join([*lines, "    resources:", f"    - {{name: {GPU}, replicas: {replicas}}}", ""])


SCENARIOS = (
    Scenario(
        "8xA100, none",
        EIGHT,
        asks=TWO,
        prefers=((GPU, 8, 2), (GPU, 8, 4), (GPU, 3, 1), (GPU, 8, 2, 5), (GPU, 8, 4, 1, 6), (GPU, 4, 4, 2)),
    ),
    Scenario("8xA100, none, but cut", a100s(8, *BALANCED), asks=((GPU, (0,)),)),
    Scenario("8xA100, single, uncut", EIGHT, SINGLE),
    Scenario(
        "8xA100, single, 1g.5gb",
        a100s(8, *["1g.5gb"] * 7),
        SINGLE,
        asks=((GPU, (0,)), (GPU, (20, 3, 11))),
    ),
    Scenario(
        "8xA100, mixed, all-balanced",
        a100s(8, *BALANCED),
        MIXED,
        resources=3,
        asks=(("nvidia.com/mig-1g.5gb", (5, 2)), ("nvidia.com/mig-3g.20gb", (0,))),
        prefers=(("nvidia.com/mig-1g.5gb", 16, 2), ("nvidia.com/mig-1g.5gb", 16, 3, 7)),
    ),
    Scenario(
        "8xA100, mixed, half of them cut",
        mixed(*["{model: A100-40, mig: [2g.10gb, 1g.5gb]}"] * 4, *["{model: A100-40}"] * 4),
        MIXED,
        resources=3,
    ),
    Scenario(
        "A100 with media extensions, mixed", a100s(1, "3g.20gb", "1g.10gb", "1g.5gb+me"), MIXED, resources=3
    ),
    Scenario(
        "RTX PRO 6000, mixed",
        mixed("{model: RTX-PRO-6000, mig: [2g.48gb, 1g.24gb-me, 1g.24gb+gfx]}"),
        MIXED,
        resources=3,
    ),
    Scenario("A100 and T4", mixed("{model: A100-40}", T4), asks=((GPU, (0, 1)),)),
    Scenario("T4 and A100, mixed, A100 cut", mixed(T4, A100 % "3g.20gb, 3g.20gb"), MIXED, resources=2),
    Scenario("K80", "K80"),
    Scenario("P100", "P100"),
    Scenario(
        "4xA30, mixed", mixed(*["{model: A30, mig: [2g.12gb, 1g.6gb, 1g.6gb]}"] * 4), MIXED, resources=2
    ),
    Scenario("8xH200", "8xH200"),
    # --- how a container is told ---
    Scenario("volume-mounts", EIGHT, {"DEVICE_LIST_STRATEGY": "volume-mounts"}, asks=TWO, labels=False),
    Scenario("cdi-annotations", EIGHT, {"DEVICE_LIST_STRATEGY": "cdi-annotations"}, asks=TWO, labels=False),
    Scenario("cdi-cri", EIGHT, {"DEVICE_LIST_STRATEGY": "cdi-cri"}, asks=TWO, labels=False),
    Scenario("envvar and cdi-cri", EIGHT, {"DEVICE_LIST_STRATEGY": "envvar,cdi-cri"}, asks=TWO, labels=False),
    Scenario(
        "cdi-cri, single",
        a100s(2, *["1g.5gb"] * 7),
        {**SINGLE, "DEVICE_LIST_STRATEGY": "cdi-cri"},
        asks=((GPU, (4, 2)),),
        labels=False,
    ),
    Scenario("device specs", EIGHT, {"PASS_DEVICE_SPECS": "true"}, asks=TWO, labels=False),
    Scenario(
        "device specs, single",
        a100s(2, *["1g.5gb"] * 7),
        {**SINGLE, "PASS_DEVICE_SPECS": "true"},
        asks=((GPU, (4, 2)),),
        labels=False,
    ),
    Scenario("ids are indexes", EIGHT, {"DEVICE_ID_STRATEGY": "index"}, asks=TWO, labels=False),
    Scenario(
        "GDS, MOFED, GDRCopy",
        EIGHT,
        {"GDS_ENABLED": "true", "MOFED_ENABLED": "true", "GDRCOPY_ENABLED": "true"},
        asks=((GPU, (0,)),),
        labels=False,
    ),
    Scenario("an id that is not there", EIGHT, asks=((GPU, (99,)),), labels=False),
    # --- replicas ---
    Scenario("2xT4, 4 replicas", "2xT4", config=sliced(4), asks=((GPU, (0,)), (GPU, (5, 1)))),
    Scenario(
        "2xT4, 4 replicas, preferred",
        "2xT4",
        config=sliced(4),
        prefers=((GPU, 8, 2), (GPU, 2, 1), (GPU, 8, 3, 5)),
    ),
    Scenario(
        "2xT4, 4 replicas, packed",
        "2xT4",
        {"SHARED_DEVICES_ALLOCATION_POLICY": "packed"},
        config=sliced(4),
        prefers=((GPU, 8, 2), (GPU, 8, 3), (GPU, 7, 2), (GPU, 8, 2, 5)),
        labels=False,
    ),
    Scenario(
        "2xT4, 4 replicas, renamed",
        "2xT4",
        config=sliced(4, "renameByDefault: true"),
        asks=((f"{GPU}.shared", (2,)),),
    ),
    Scenario(
        "2xT4, replicas, one to a container",
        "2xT4",
        config=sliced(2, "failRequestsGreaterThanOne: true"),
        asks=((GPU, (0, 2)),),
    ),
    Scenario("2xT4, 4 replicas, two of one GPU", "2xT4", config=sliced(4), asks=((GPU, (0, 1)),)),
    Scenario("2xT4, 4 replicas, XID 79 on GPU 1", "2xT4", config=sliced(4), xids=((79, 1),), labels=False),
    Scenario(
        "2xA100 in sevenths, single, 2 replicas",
        a100s(2, *["1g.5gb"] * 7),
        SINGLE,
        config=sliced(2),
        asks=((GPU, (0,)),),
    ),
    Scenario(
        "A100 cut and A100, mixed, replicas of both",
        mixed(A100 % "1g.5gb, 1g.5gb", "{model: A100-40}"),
        MIXED,
        resources=2,
        config=sliced(3) + "    - {name: nvidia.com/mig-1g.5gb, replicas: 4}\n",
    ),
    Scenario("replicas of nothing there", "2xT4", config=sliced(4).replace(GPU, "nvidia.com/mig-1g.5gb")),
    Scenario("1 replica", "2xT4", config=sliced(1), labels=False),
    Scenario("a misplaced key", "2xT4", config=MISPLACED, labels=False),
    Scenario("another version", "2xT4", config="version: v2\n", labels=False),
    Scenario("index and strategy from a file", "2xT4", config=FLAGS, asks=((GPU, (1,)),), labels=False),
    # --- layouts that cannot be ---
    Scenario("single, two profiles", a100s(2, *BALANCED), SINGLE),
    Scenario("single, one GPU uncut", mixed(A100 % ", ".join(["1g.5gb"] * 7), "{model: A100-40}"), SINGLE),
    Scenario("single, cut but empty", a100s(2, " "), SINGLE),
    Scenario("mixed, one cut but empty", mixed(A100 % "", "{model: A100-40}"), MIXED),
    Scenario(
        "mixed, parts of an instance",
        mixed(A100 % "4g.20gb", "{model: A100-40}"),
        MIXED,
        resources=3,
        kept=("mig 0 1 1", "instance 0 5 0 1,1,2", "mig 1 0 0"),
    ),
    # --- health ---
    Scenario("XID 79 on GPU 3", EIGHT, xids=((79, 3),), labels=False),
    Scenario(
        "XIDs of programs, then 48 on GPU 5",
        EIGHT,
        xids=((13, 1), (31, 1), (43, 1), (45, 1), (68, 1), (109, 1), (48, 5)),
        labels=False,
    ),
    Scenario(
        "DP_DISABLE_HEALTHCHECKS=xids",
        EIGHT,
        {"DP_DISABLE_HEALTHCHECKS": "xids"},
        xids=((79, 3),),
        labels=False,
    ),
    Scenario(
        "DP_DISABLE_HEALTHCHECKS=all",
        EIGHT,
        {"DP_DISABLE_HEALTHCHECKS": "all"},
        xids=((79, 3),),
        labels=False,
    ),
    Scenario(
        "DP_DISABLE_HEALTHCHECKS=79",
        EIGHT,
        {"DP_DISABLE_HEALTHCHECKS": "79"},
        xids=((79, 3), (48, 5)),
        labels=False,
    ),
    Scenario(
        "DP_ENABLE_HEALTHCHECKS=43", EIGHT, {"DP_ENABLE_HEALTHCHECKS": "43"}, xids=((43, 2),), labels=False
    ),
    Scenario(
        "DP_DISABLE_HEALTHCHECKS=all, DP_ENABLE_HEALTHCHECKS=79",
        EIGHT,
        {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"},
        xids=((48, 5), (79, 3)),
        labels=False,
    ),
    Scenario("single, XID 79 on a cut GPU", a100s(2, *["1g.5gb"] * 7), SINGLE, xids=((79, 1),), labels=False),
    Scenario(
        "single, XID 79 in one instance",
        a100s(2, *["1g.5gb"] * 7),
        SINGLE,
        xids=((79, 1, 9, 0),),
        labels=False,
    ),
    # --- a driver that lies ---
    Scenario("no library", EIGHT, no_library=True),
    Scenario(
        "no library, FAIL_ON_INIT_ERROR=false",
        EIGHT,
        {"FAIL_ON_INIT_ERROR": "false"},
        no_library=True,
        labels=False,
    ),
    Scenario("no kernel module", EIGHT, now=("init 9",)),
    Scenario("library and module differ", EIGHT, now=("init 18",)),
    Scenario("an old library without MIG", EIGHT, old_driver=True),
    Scenario("GPU 3 is lost from the start", EIGHT, now=("lost 3",)),
    Scenario("GPU 3 is not there", EIGHT, now=("gone 3",)),
    *(Scenario(f"GPU 3 vanishes after {n} calls", EIGHT, now=(f"vanishes 3 {n}",)) for n in (1, 2, 4, 8)),
    Scenario("GPU 3 falls off the bus", EIGHT, later=("lost 3",), labels=False),
    Scenario("no GPU at all", EIGHT, now=tuple(f"gone {i}" for i in range(8)), resources=0),
)
