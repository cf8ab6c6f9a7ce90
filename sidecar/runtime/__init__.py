"""Common parts of the daemon and the pipeline on Spark: objects built from settings, threads for slow operations."""
