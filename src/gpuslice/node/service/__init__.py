"""The device plugin service: what answers a kubelet's calls."""
