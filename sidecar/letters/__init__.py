"""Dead letters that are delivered again, under names that are durable before they are used."""
