"""Sources of messages."""
