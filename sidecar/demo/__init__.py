"""The demonstration of ``sidecar demo``: broker, receiver and daemon as processes. Not a part of the daemon."""
