"""One ownership of a partition: what is settled, what may have been sent, and the state that the next owner gets."""
