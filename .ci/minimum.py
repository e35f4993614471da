"""Print `name==minimum` for every dependency in pyproject.toml, for an environment with the oldest versions allowed."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
for dependency in project["dependencies"]:
    name, minimum = re.fullmatch(r"([\w.-]+)>=([\d.]+)", dependency).groups()
    print(f"{name}=={minimum}")
