"""Messages whose keys twins held while their task ran: kept beside the checkpoint, settled by the driver."""
