"""What the engines share: the daemon, the tasks of Spark, and the replay of dead letters."""
