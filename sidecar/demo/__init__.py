"""The demonstration behind ``sidecar demo``: broker, receiver and daemon as processes. No part of the daemon."""
