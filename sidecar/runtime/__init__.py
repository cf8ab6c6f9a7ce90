"""Shared parts of the engines: the daemon, the tasks of Spark, and the replay of dead letters."""
