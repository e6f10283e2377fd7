"""`gpuslice doctor host`: what one node's own files say about driver, toolkit and container runtime."""
