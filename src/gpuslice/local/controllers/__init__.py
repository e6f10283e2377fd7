"""What kube-controller-manager does for a cluster: keeps workloads, namespaces and ownership as declared.

Over `kube.client.Client` only, so it would keep a real API server's objects as well. `run` assembles
the controllers; each of them is one module; `runtime` and `podcontrol` hold what they share.
"""

from gpuslice.local.controllers.run import run_controllers

__all__ = ["run_controllers"]
