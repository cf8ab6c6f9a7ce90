"""`client: remoting`: a group member that pulls queues over Sidecar's own connections."""
