"""Held messages that are found by their names."""
