"""Agents: a State and pure functions each. They see batches and know of no disk."""
