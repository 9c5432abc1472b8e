"""All experience, on disk."""
