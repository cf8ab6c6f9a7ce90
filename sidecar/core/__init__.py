"""The pure core: (event, now) in, effects out. It uses no thread, socket, clock, random number, file or logger."""
