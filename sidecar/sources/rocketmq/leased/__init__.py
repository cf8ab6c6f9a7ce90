"""Common parts of clients that hand messages over one by one, for a limited time. No connection."""
