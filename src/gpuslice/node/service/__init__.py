"""The device plugin service: what is answered to a kubelet."""
