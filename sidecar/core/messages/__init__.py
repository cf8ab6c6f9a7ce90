"""Tags and ids of messages."""
