# SPDX-License-Identifier: Apache-2.0
"""Print what pyproject.toml in this folder depends on, one requirement a line, with the extras named as arguments.

With --build: what it is built by.
"""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    content = tomllib.load(file)
extras = content["project"]["optional-dependencies"]
if sys.argv[1:] == ["--build"]:
    lines = content["build-system"]["requires"]
else:
    lines = [*content["project"]["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]
# An extra that names another one of this project: whoever asks for it names that one as well.
print("\n".join(line for line in lines if not line.startswith("hedgerow[")))
