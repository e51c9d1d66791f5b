"""`python -m cystore.cli`."""

import sys

from cystore.cli.program import main

sys.exit(main())
