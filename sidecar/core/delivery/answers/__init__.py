"""The consequences of an answer."""
