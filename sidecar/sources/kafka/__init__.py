"""Kafka by a consumer group. What is asked of the broker, and when; what it means for messages the core decides."""
