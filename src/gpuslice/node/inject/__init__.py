"""How a container gets its devices: the response to Allocate and the files behind it."""
