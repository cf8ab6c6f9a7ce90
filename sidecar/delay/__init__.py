"""Messages held until they are due, on disk: one file per hour. Knows no broker and no batch."""
