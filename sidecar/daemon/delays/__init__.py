"""Delayed messages: held in a store, and handed to the core when they are due."""
