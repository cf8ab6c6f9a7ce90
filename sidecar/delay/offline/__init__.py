"""Stores that are read while no process has them open. Nothing on the disk changes."""
