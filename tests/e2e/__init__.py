"""gpuslice against the real Kubernetes programs, on one machine; see cluster.py for what is put together."""
