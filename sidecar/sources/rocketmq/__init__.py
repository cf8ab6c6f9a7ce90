"""RocketMQ: `remoting` reads queues; `leased` takes messages one by one, over `grpc` or `native`; `wire` is shared."""
