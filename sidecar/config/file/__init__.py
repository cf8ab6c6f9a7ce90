"""From the file's text to settings, or to what is wrong with it."""
