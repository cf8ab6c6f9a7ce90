"""Delayed messages in a compacted topic, from which any owner of a partition restores them."""
