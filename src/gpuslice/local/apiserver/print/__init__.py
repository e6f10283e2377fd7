"""What `kubectl get` shows: columns and cells of every kind."""
