"""What runs on executors: a task delivers one range. Imported by the driver for its plan alone."""
