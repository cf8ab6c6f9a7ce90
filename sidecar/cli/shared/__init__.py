"""Shared parts of commands: requests to the daemon, printing and questions."""
