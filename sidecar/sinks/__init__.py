"""Destinations of batches."""
