"""The landing zone as a source of Spark, each row once: options, planning on the driver, reading on executors."""
