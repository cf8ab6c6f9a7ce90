"""The way of a batch, from its cut to its end."""
