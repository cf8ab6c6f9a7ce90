"""From what was read to what is to be delivered: position, filter, id, framing."""
