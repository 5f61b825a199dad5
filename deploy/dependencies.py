"""Print what pyproject.toml in this folder depends on, one requirement a line, with the extras named as arguments."""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print("\n".join([*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]))
