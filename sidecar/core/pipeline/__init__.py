"""Connects reading, cutting, committing and delivery."""
