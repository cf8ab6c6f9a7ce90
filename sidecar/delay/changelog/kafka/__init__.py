"""The changelog in Kafka: topics, an idempotent producer, and a consumer for each partition that is restored."""
