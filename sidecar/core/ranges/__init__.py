"""One range of offsets, whose cuts follow only from its messages."""
