"""Which GPUs this node has, what happens to them, and how MIG is changed: by NVML, or on paper.

`driver.Driver` is the protocol, `nvml.NvmlDriver` and `simulated.SimulatedDriver` speak it; `backend` makes
of either what the agent follows.
"""
