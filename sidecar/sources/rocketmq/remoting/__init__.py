"""`client: remoting`: a member of a consumer group that pulls queues over connections of our own."""
