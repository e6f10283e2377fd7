"""Which GPUs this node has, what happens to them, and how MIG is changed: by NVML, or simulated.

`driver.Driver` is the protocol; `nvml.NvmlDriver` and `simulated.SimulatedDriver` implement it; the agent
follows either through `backend`.
"""
