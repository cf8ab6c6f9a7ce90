"""Tests of what finds held messages by their names, tags and groups."""
