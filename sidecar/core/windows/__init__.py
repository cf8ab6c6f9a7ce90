"""What was seen already: windows of numbers and of message ids."""
