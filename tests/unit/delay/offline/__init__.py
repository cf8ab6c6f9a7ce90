"""Tests of stores that are read while no process has them open."""
