"""`sidecar check`: whether what a configuration names is there and may be used. Joins no group, posts no row."""
