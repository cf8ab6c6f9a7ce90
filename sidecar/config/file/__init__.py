"""Reading of the file's text into settings, or into its problems."""
