"""The brokers that the pipeline on Spark reads: what driver and tasks ask of them."""
