"""What all that reads ranges of offsets on Spark shares."""
