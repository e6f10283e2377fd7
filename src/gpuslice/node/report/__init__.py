"""What the agent tells the cluster: annotations, labels, conditions, events, metrics."""
