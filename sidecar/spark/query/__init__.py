"""Sources for a user's own query, which read brokers with the daemon's client: options, planning, rows."""
