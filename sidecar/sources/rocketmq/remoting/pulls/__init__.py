"""Long pulls of queues, and the proofs that a queue is still the same."""
