"""Settings that say how a table is kept: its columns, its partitions, its properties, its maintenance."""
