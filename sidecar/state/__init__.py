"""State that survives a restart."""
