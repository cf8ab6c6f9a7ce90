"""Windows of numbers and message ids that were seen before."""
