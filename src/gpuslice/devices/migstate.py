"""The values of the label nvidia.com/mig.config.state: how far a node's GPUs are partitioned as desired."""

from __future__ import annotations

from enum import StrEnum


class MigState(StrEnum):
    """NVIDIA's mig-manager writes these words, and so do we; it has one more, `rebooting`."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
