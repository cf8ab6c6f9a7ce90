"""Shared parts of all readers of offset ranges on Spark: brokers, messages of a range, data that outlives a task."""
