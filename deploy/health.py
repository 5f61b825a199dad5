# SPDX-License-Identifier: Apache-2.0
"""Exit with 0 if this container's coordinator listens, or its node is connected to one, on port HEDGEROW_PORT (7443).

Asks the kernel and opens no connection: the coordinator would have to refuse it, and would count it.
"""

import os
import sys
from pathlib import Path

ESTABLISHED, LISTENING = "01", "0A"

port = f":{int(os.environ.get('HEDGEROW_PORT', '7443')):04X}"
for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
    for line in table.read_text().splitlines()[1:] if table.exists() else ():
        _, here, there, state, *_ = line.split()
        if (state == LISTENING and here.endswith(port)) or (state == ESTABLISHED and there.endswith(port)):
            sys.exit(0)
sys.exit(1)
