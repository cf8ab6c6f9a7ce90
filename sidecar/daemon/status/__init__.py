"""Status of a daemon: its snapshot, its problems, and both in the log."""
