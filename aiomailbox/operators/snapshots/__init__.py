"""What operators resume from: snapshots, and how they are spread over subtasks."""
