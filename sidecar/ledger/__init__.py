"""The message-id ledger: who may deliver a message that its producer sent twice, remembered in a database."""
