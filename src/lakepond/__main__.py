"""`python -m lakepond` is `lakepond`."""

import sys

from lakepond.cli import main

sys.exit(main())
