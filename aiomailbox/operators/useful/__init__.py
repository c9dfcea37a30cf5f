"""Ready-made operators: batches, buffers, duplicates, patterns, samples."""
