"""The API for users: environments, streams, jobs."""
