"""What users write: environments, streams, jobs."""
