"""What the processes of a job say to each other, whoever has started them."""
