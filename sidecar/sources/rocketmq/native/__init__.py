"""`client: native`: the daemon's side of the child process that has librocketmq."""
