"""The pipeline on Spark: from the Kafka connector to the HTTP sink. What decides about messages stays in the core."""
