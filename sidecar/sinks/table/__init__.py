"""What all that writes Delta tables shares: durable commits, and maintenance."""
