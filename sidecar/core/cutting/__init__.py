"""Open messages, and when they become parts."""
