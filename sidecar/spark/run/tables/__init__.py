"""The pipeline on Spark with a sink that is a table."""
