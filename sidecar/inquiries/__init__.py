"""Queries of brokers and settings for an operator: no query joins a group or delivers anything."""
