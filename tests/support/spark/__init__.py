"""Harness of tests that need Spark. No test may come in."""
