"""`python -m lakepond` is `lakepond`."""

from lakepond.cli import program

program()
