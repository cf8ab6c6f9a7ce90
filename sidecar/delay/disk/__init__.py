"""Held messages on a disk: blocks, files of hours, log, checkpoints, and the wheel over an hour. Knows no reader."""
