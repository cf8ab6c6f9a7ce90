"""Kafka through a consumer group: requests to the broker and their timing. The core decides about messages."""
