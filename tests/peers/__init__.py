"""Other libraries' own tests, run with lakepond's classes in the place of theirs: `make peers`."""
