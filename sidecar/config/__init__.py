"""The settings model, its loader and its schema."""
