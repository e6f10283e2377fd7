"""The cluster as we know it: one in-memory truth, rebuilt from API objects alone after any restart."""
