"""How the GPUs of a node are partitioned, as its labels say or as waiting pods need it."""
