"""Settings of the sources."""
