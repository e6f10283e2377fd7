"""`gpuslice install` and `uninstall`: what the API server cannot do, and what is left of us there."""
