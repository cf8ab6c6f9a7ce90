"""Delayed messages in PostgreSQL: a `Changelog` and a `Restorer` of tables."""
