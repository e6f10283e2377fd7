"""A whole cluster in one process: API server, controllers, kubelets and runtime, all honest and small."""
