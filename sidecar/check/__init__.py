"""`sidecar check`: verifies that all that a configuration refers to is accessible. Joins no group, posts no row."""
