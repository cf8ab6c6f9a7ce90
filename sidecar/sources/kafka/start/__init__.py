"""Where an assigned partition goes on."""
