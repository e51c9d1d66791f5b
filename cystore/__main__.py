"""`python -m cystore`: the console command."""

import sys

from cystore.cli.program import main

sys.exit(main())
