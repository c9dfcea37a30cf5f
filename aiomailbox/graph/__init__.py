"""From the user's calls to the job that is deployed."""
