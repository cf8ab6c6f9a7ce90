"""Mutants that `tests/mutants.py` may draw and that nobody can tell from the module as it is."""

EQUIVALENT: dict[str, str] = {}
"""By name, the reason."""
