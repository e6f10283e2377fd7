"""Who holds how much of which GPU, and why a pod waits."""
