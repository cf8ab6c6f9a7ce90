"""Runs of the whole daemon at any size: small in tests, large in `make prove`. No test may come in."""
