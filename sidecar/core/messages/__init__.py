"""Tags, ids and due times of messages."""
