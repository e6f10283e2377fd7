"""The state of the cluster in memory, rebuilt from API objects alone after any restart."""
