"""The node agent: device plugins whose slices are certain, and the only door to gRPC."""
