"""Places pods on nodes: the binder, the complete scheduler, preemption, and the extender."""
