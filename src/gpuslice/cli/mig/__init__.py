"""`gpuslice mig`: this machine's MIG layout."""
