"""Sources for a query of one's own, which read brokers with the daemon's client: options, planning, rows."""
