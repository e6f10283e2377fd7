"""What the agent reports to the cluster: annotations, labels, conditions, events, metrics."""
