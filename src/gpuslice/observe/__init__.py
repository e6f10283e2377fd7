"""What operators see of a running process: logs, metrics, and the HTTP server that offers them."""
