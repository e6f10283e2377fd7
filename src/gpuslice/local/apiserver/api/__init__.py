"""Serving: from a request to what is stored, and to those who watch it."""
