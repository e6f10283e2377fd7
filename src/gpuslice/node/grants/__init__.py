"""Which ids are given out on one node, and to which container: values and rules. Pure."""
