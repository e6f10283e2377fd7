"""What a pod asks for and what it was given, normalised. Pure values, no I/O."""
