"""`python -m arlo.cli`: another way to run `arlo`."""

import sys

from arlo.cli.app import main

sys.exit(main())
