"""Take messages from Kafka once each, in batches per tag, and hand them on."""
