"""The command line: what people type, and what they read. Nothing heavy is imported before it is needed."""
