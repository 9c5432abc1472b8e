"""Other formats and frameworks: read from, written to, never needed by the core."""
