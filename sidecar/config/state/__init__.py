"""Settings of the state folder, and its default."""
