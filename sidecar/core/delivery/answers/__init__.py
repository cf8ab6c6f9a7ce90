"""What an answer leads to."""
