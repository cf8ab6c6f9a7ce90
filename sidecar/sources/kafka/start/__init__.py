"""Start offsets of assigned partitions."""
