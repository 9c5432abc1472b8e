"""`python -m faults`: see `soak`."""

import sys

from faults.soak import main

sys.exit(main())
