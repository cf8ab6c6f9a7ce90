"""The life of a batch, from its cut to its end."""
