"""Rows of ranges of offsets, as Arrow columns: what queries and the tables of jobs have in common."""
