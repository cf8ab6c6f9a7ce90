"""Shared parts of all writers of Delta tables: durable commits, and maintenance."""
