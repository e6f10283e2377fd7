"""`gpuslice nodepool`: pools of machines whose GPUs are partitioned alike."""
