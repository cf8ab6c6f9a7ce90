"""One range of offsets, whose cuts follow from its messages alone."""
