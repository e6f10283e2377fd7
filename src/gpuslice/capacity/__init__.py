"""Capacity: which machines a cluster has and how their GPUs are partitioned."""
