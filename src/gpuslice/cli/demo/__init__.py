"""`make demo`: stories of shared GPUs on clusters in this process, told and checked."""
