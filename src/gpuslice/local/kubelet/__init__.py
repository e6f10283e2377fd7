"""A simulated kubelet: a node of a cluster in one process, true to what a real one does with devices."""

from gpuslice.local.kubelet.kubelet import Kubelet
from gpuslice.local.kubelet.node import NodeDescription

__all__ = ["Kubelet", "NodeDescription"]
