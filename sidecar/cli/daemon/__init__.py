"""Commands that run a daemon, or ask one that runs."""
