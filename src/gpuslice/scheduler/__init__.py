"""Who goes where: the binder, the complete scheduler, preemption, and the extender's doors."""
