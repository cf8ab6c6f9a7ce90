"""Commands that run a daemon, or query a running one."""
