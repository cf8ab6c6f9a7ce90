"""Commands about a configuration file."""
