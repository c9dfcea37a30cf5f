"""What operators of every family stand on."""
