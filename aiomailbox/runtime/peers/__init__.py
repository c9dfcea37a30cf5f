"""What the processes of a job say to each other, however they were started."""
