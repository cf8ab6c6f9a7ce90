"""What is read in a message: tags and ids."""
