"""Writing a lake: commits, merging, retention."""
