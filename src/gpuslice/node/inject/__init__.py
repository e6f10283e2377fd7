"""How a container gets its devices: the answer to Allocate and the files behind it."""
