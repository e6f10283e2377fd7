"""What a GPU is: models, a node's inventory, health. Pure values, no I/O."""
