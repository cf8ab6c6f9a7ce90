"""What the clients that hand messages over one by one, for a time, have in common. No connection."""
