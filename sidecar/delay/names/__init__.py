"""Held messages that are found by their names, tags or groups."""
