"""gpuslice against the real Kubernetes programs, on one machine; see cluster.py for what is put together."""

import os

# Debian keeps ip, iptables and sysctl where not every root's PATH looks; what the suite starts looks there, too.
os.environ["PATH"] = os.pathsep.join(
    [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
)
