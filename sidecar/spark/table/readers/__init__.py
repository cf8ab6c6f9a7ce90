"""What makes a table the same for every reader: types, times, and the session that writes it."""
