# SPDX-License-Identifier: Apache-2.0
"""Whether the containers of a composition are as they should be: each party apart, without rights, with its own volume.

A party's volume, or folder of the host, is what it has as /data.

python deploy/containers.py SHOWN [SERVICE ...]     SHOWN: what `inspect` printed; services that still run
"""

import json
import sys
from collections import Counter
from pathlib import Path

containers = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
serving = sys.argv[2:]
faults = []
volumes = Counter()
for container in containers:
    name, host = container["Name"].lstrip("/"), container["HostConfig"]
    is_serving = any(service in name for service in serving)
    if container["State"]["Running"] != is_serving:
        faults.append(f"{name} {'has ended' if is_serving else 'still runs'}")
    if container["State"]["ExitCode"] != 0:
        faults.append(f"{name} ended with exit code {container['State']['ExitCode']}")
    if not host["ReadonlyRootfs"]:
        faults.append(f"{name} may write to its image")
    if not any(option.startswith("no-new-privileges") for option in host["SecurityOpt"]):
        faults.append(f"{name} may gain privileges")
    if "setup" in name:
        continue
    if container["Config"]["User"] in ("", "0", "root", "0:0"):
        faults.append(f"{name} runs as root")
    if container.get("EffectiveCaps"):
        faults.append(f"{name} has capabilities: {container['EffectiveCaps']}")
    own = (mount for mount in container["Mounts"] if mount["Destination"] == "/data")
    volumes.update(mount.get("Name") or mount["Source"] for mount in own)
faults += [f"{count} parties mount the volume {name}" for name, count in volumes.items() if count > 1]
if len(volumes) < len(containers) - 1:
    faults.append(f"not every party has a volume of its own: {sorted(volumes)}")
sys.exit("\n".join(faults) or 0)
