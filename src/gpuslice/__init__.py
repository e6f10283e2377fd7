"""gpuslice: share GPUs in Kubernetes, on a laptop or on a real cluster."""

__version__ = "0.1.0"
