"""`gpuslice up`: a whole cluster with simulated GPUs, in this process."""
