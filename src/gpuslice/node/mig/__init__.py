"""How the GPUs of a node are partitioned, as its labels or the pods that wait say."""
