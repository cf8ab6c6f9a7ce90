"""The pure core: (event, now) in, effects out. No thread, socket, clock, random number, file or logger may come in."""
