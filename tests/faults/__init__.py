"""Fault drills: crashes, full disks, signals, clock jumps, forks and hostile inputs, against a perfect model.

`python -m faults` (from `tests/`, or `make soak`) runs them at length; `test_*.py` here are the fast parts.
"""
