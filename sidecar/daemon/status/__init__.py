"""What is told of a daemon: its status, what is wrong with it, and both in the log."""
