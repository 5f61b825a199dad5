"""Print what pyproject.toml in this folder depends on, one requirement a line, with the extras named as arguments."""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
lines = [*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]
# An extra that names another one of this project: whoever asks for it names that one as well.
print("\n".join(line for line in lines if not line.startswith("hedgerow[")))
