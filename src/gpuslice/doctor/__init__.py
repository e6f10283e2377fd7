"""`gpuslice doctor`: what is wrong with a cluster, where, why, and the command that mends it."""
