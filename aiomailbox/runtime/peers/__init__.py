"""Messages between the processes of a job, however they were started."""
