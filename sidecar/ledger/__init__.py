"""The ledger: decides which of several messages with the same id is delivered, and remembers it in a database."""
