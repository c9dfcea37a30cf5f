"""Running jobs: tasks on this loop, job-wide services, the end of it all."""
