"""Watches whether NVIDIA's own GPU feature discovery runs on this node: if so, it owns the labels under
nvidia.com/.

Its label `nvidia.com/gfd.timestamp` alone does not show this: the label stays when feature discovery has
gone, and holds the time of its start, not of its last write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuslice.cluster.podstatus import has_ended
from gpuslice.kube.wire import Pod

CONTAINER: Final = "gpu-feature-discovery"
"""How its container's name begins: in NVIDIA's plain manifests, in its chart and in the GPU operator."""


class FeatureDaemon:
    """Fed with the node's pods; `on_change` is called when the answer has changed."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._pods: set[str] = set()

    @property
    def runs(self) -> bool:
        return bool(self._pods)

    def set_pod(self, pod: Pod) -> None:
        """A pod of this node as the API server has it."""
        named = any(container.name.startswith(CONTAINER) for container in pod.spec.containers)
        self._keep(pod, named and not has_ended(pod))

    def drop_pod(self, pod: Pod) -> None:
        self._keep(pod, False)

    def _keep(self, pod: Pod, runs: bool) -> None:
        before = self.runs
        (self._pods.add if runs else self._pods.discard)(pod.uid)
        if self.runs != before:
            self._on_change()
