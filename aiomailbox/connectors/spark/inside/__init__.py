"""Pipelines inside Spark's workers, over Spark's shuffle."""
