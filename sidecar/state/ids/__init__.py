"""Message ids of the state folder: new ones as rows, the others in sorted files."""
