"""Shared parts of the jobs that fill a table: targets, columns, writers, pinned settings, life of the queries."""
