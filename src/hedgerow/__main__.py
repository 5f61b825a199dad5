# SPDX-License-Identifier: Apache-2.0
"""``python -m hedgerow``: the same as the command ``hedgerow``."""

import sys

from hedgerow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
