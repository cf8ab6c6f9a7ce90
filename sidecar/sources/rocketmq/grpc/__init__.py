"""`client: grpc`: RocketMQ 5 through its proxy."""
