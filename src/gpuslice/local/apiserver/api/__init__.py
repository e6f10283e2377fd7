"""Serving: from a request to the stored objects and to their watchers."""
