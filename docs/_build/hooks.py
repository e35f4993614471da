"""What is built from outside of docs/: tables of benchmarks/README.md, statuses of `kx.Result`, notebooks, the gallery."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gallery import gallery  # beside this file
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from kernax.fitting._fits import as_result
from kernax.solvers import Result, result_advice, result_meaning, result_name

ROOT = Path(__file__).parents[2]
_CODE_OR_FORMULA = re.compile(r"(?P<code>`+[^`]*`+)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", flags=re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, with its pictures, and the list of them; and the gallery of kernels."""
    listed = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = page_of_notebook(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
        listed.append(f"- [{text.splitlines()[0].removeprefix('# ')}]({path.stem}.md): `notebooks/{path.name}`")
    text, pictures = gallery()
    files.append(File.generated(config, "gallery.md", content=text))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    index = "# Notebooks\n\nThey are in the repository, ready to run; these pages show them as they were last run.\n\n"
    files.append(File.generated(config, "notebooks/index.md", content=index + "\n".join(listed) + "\n"))
    return files


def on_config(config: Any) -> Any:
    """Put every notebook into the navigation."""
    (section,) = [entry["Notebooks"] for entry in config.nav if "Notebooks" in entry]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        page = f"notebooks/{path.stem}.md"
        if page not in section:
            section.append(page)
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The measured tables, each below the command that made it; the table of statuses."""
    if page.file.src_uri == "benchmarks.md":
        return markdown.replace("{{ tables }}", with_commands((ROOT / "benchmarks" / "README.md").read_text()))
    if page.file.src_uri == "reference/solvers.md":
        return markdown.replace("{{ results }}", table_of_results())
    return markdown


def table_of_results() -> str:
    """Every status with its meaning and its advice."""
    rows = ["| status | what happened | what to do |", "|---|---|---|"]
    for code in range(len(Result)):
        result = as_result(np.asarray(code))
        rows.append(f"| `{result_name(result)}` | {result_meaning(result)} | {_with_code(result_advice(result)) or '–'} |")
    return "\n".join(rows)


def _with_code(text: str) -> str:
    """The text with backticks around names of code."""
    return re.sub(r"(?<![\w`])((?:kx|learners|np)\.\w+(?:\([^)]*\))?|max_\w+|intercept=False)", r"`\1`", text)


def with_commands(text: str) -> str:
    """The README of the benchmarks, less its title, with a command below every heading that names some."""

    def command(heading: re.Match) -> str:
        names = re.findall(r"`(\w+)`", heading[0].split(":")[0])
        return f"{heading[0]}\n\n```sh\npython -m benchmarks {' '.join(names)}\n```" if names else heading[0]

    body = text.split("\n", 1)[1]
    return re.sub(r"^## .*$", command, body, flags=re.MULTILINE)


def page_of_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_CODE_OR_FORMULA.sub(_formula, source).replace(".ipynb)", ".md)"))
        elif cell["cell_type"] == "code":
            parts.append(_fenced("python", source))
            parts += [_shown(output, path.stem, pictures) for output in cell["outputs"]]
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def _formula(found: re.Match) -> str:
    """LaTeX as MathML, which browsers draw themselves: the site loads nothing from elsewhere."""
    if found["code"]:
        return found["code"]
    if found["block"]:
        return convert(found["block"], display="block")
    return f"<span>{convert(found['inline'])}</span>"  # <math> at the beginning of a line would be a block to Markdown


def _shown(output: dict, stem: str, pictures: dict[str, bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{stem}_{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode("".join(data["image/png"]))
        return f"![picture {len(pictures)} of the notebook]({name})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return _fenced("text", text.rstrip()) if text.strip() else ""


def _fenced(language: str, text: str) -> str:
    return f"````{language}\n{text}\n````"
