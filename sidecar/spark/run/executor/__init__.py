"""Code on executors: a task delivers one range. The driver imports it only for its plan."""
