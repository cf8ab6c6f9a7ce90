"""What several commands share: requests to the daemon, and how they print and ask."""
