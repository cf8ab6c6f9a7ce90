"""The fast lane, an optional way to read Kafka."""
