"""The shell that runs the core."""
