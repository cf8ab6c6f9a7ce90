"""What the jobs that fill a table share: targets, columns, writers, what is pinned, and the life of their queries."""
