"""`gpuslice nodepool`: pools of machines whose GPUs are cut alike."""
