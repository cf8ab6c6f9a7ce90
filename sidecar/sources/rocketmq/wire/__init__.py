"""RocketMQ's remoting protocol on the standard library: frames, messages, connections, requests. Knows no daemon."""
