"""`python -m arlo.cli`: the same as `arlo`."""

import sys

from arlo.cli.app import main

sys.exit(main())
