"""What differs on purpose, and why. docs/peers.md tells the same to people."""

from __future__ import annotations

import re

_LOST = "GPU 3 (is lost|vanishes).*"
_SINGLE = "single, (two profiles|one GPU uncut|cut but empty)"

REASONS: tuple[tuple[str, str, str], ...] = (
    (".*", ".*: socket", "our sockets are called gpuslice-*, so that both can be in one folder"),
    (
        ".*",
        "CDI .*: mounts",
        "a library is mounted under its links' names where no hook of NVIDIA's toolkit makes them",
    ),
    (
        ".*",
        "label nvidia.com/gfd.timestamp is there",
        "it says when feature discovery was started; the agent writes it for Node Feature Discovery alone",
    ),
    (
        "8xA100, none",
        r"GetPreferredAllocation nvidia.com/gpu: (2 of 8|1 of 3): of which devices",
        "of sets that are equally near ours is the first, NVIDIA's one by chance (a Go map)",
    ),
    (
        "2xT4, 4 replicas, packed",
        r"GetPreferredAllocation nvidia.com/gpu: [23] of 8: of which devices",
        "of GPUs of which equally many are given out ours is the first, NVIDIA's one by chance (a Go map)",
    ),
    (
        "8xA100, mixed, all-balanced",
        "GetPreferredAllocation nvidia.com/mig-1g.5gb: .*: of which devices",
        "MIG devices are preferred beside others in use, so that GPUs can be cut anew; NVIDIA's are spread",
    ),
    (
        "mig-parted, checkpoint of divided instances",
        r".*restore.*: layout",
        "compute instances are made again in the order in which apply made them, so that UUIDs are as before",
    ),
    (
        "cdi-cri, single",
        "CDI .*=GPU-.*",
        "GPUs that are cut have a name in the specification, too; nobody is given them",
    ),
    (
        "an id that is not there",
        "Allocate .*",
        "NVIDIA's sentence, and what is behind it",
    ),
    (
        "A100 and T4",
        "label nvidia.com/gpu.(compute.*|family|memory|product)",
        "the labels describe one of the models: ours the last, NVIDIA's one by chance (a Go map)",
    ),
    (
        "ids are indexes",
        r"Allocate nvidia.com/gpu \[3, 1\]",
        "ours in the order asked, as everywhere; NVIDIA's indexes come by chance (a Go map)",
    ),
    ("1 replica|another version", "says", "NVIDIA's sentence with the place"),
    (
        _SINGLE,
        "runs|says|resources",
        "the agent stays and makes the instances, as the node's label says; NVIDIA's plugin ends",
    ),
    (
        "mixed, parts of an instance",
        "runs|registers|says|resources|label error",
        "NVIDIA's plugin does not start where a GPU instance is divided; here the parts are resources",
    ),
    (
        "DP_DISABLE.*=all, DP_ENABLE.*",
        "sick after .*",
        "what is enabled counts, as NVIDIA documents; its plugin looks at nothing after `all`",
    ),
    (
        "single, XID 79 .*",
        "sick after .*",
        "an XID befalls every MIG device that it is about; NVIDIA's plugin remembers one of a GPU",
    ),
    (
        "2xT4, 4 replicas, XID .*",
        "sick after .*",
        "an XID befalls all replicas of a GPU; NVIDIA's plugin remembers one of them",
    ),
    ("no library.*|no kernel module|library and module differ", "says|label error", "a sentence for people"),
    (
        "no library, FAIL_ON_INIT_ERROR=false",
        "runs|resources",
        "the agent ends and kubelet starts it anew, which finds a driver that comes later",
    ),
    (
        "GPU 3 falls off the bus",
        "sick after .*",
        "NVIDIA's plugin cannot say which GPU it was: all become unhealthy",
    ),
    (_LOST, "runs|registers|says|resources|label error", "the other GPUs go on; NVIDIA's programs end"),
    ("no GPU at all", "label .*", "a node without GPUs has no labels about them"),
    (
        "a misplaced key",
        "runs|registers|says|resources",
        "an error that names the place; NVIDIA's plugin takes no notice of the key",
    ),
    (
        "mig-parted.*",
        ".*: says",
        "mig-parted's sentence with the place, or a sentence that says what is wrong",
    ),
    ("mig-parted, a file with.*", "says", "mig-parted's sentence with the place and the remedy"),
    (
        "mig-parted, only the first",
        ".*succeeds",
        "mig-parted asks that a configuration is about every GPU, but only when it asserts",
    ),
    (
        "mig-parted, (impossible|a profile|beside a profile|GPU 7|another model|--valid-config|in use).*",
        ".*(succeeds|layout)",
        "checked before a GPU is touched, and undone if the driver refuses",
    ),
    (
        "mig-parted, no GPU that can be cut",
        ".*succeeds",
        "what would change nothing is an error, not a success",
    ),
)
"""Patterns of scenario and of what is compared, and the reason."""


def why(scenario: str, what: str) -> str:
    """The reason why it differs, "" if there is none."""
    for where, which, reason in REASONS:
        if re.fullmatch(where, scenario) and re.fullmatch(which, what):
            return reason
    return ""
