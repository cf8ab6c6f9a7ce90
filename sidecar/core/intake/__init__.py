"""Conversion of read messages into rows to deliver: position, filter, id, framing."""
