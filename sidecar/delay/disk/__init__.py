"""Held messages on a disk: blocks, files of hours, the log, and the wheel over an hour. Knows no partition."""
