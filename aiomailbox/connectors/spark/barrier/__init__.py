"""Pipelines inside Spark whose workers run side by side: a barrier stage."""
