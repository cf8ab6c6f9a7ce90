"""What the daemon and the pipeline on Spark share: what is built of settings, and threads that wait for slow things."""
