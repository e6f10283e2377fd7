"""What passes between the agent and its kubelet: gRPC, messages, sockets, folders."""
