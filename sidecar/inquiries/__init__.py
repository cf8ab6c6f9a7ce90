"""What commands ask of brokers and settings for an operator: joins no group, and delivers nothing."""
