"""`gpuslice node`: what is on this machine, without a cluster."""
