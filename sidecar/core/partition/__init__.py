"""One ownership of a partition: what of it is settled, what may have been sent, and the state that travels on."""
