"""Ties reading, cutting, committing and delivery together."""
