"""What the documentation shows runs, and what is public is in its reference.

Fences: ```python blocks run, those of a page one after the other in one namespace. Lines of ```sh blocks that begin with
`kernax ` run in a folder of the page's own. Code of other libraries stands in ```py blocks whose title names the library: it
does not run.
"""

import html
import importlib
import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from jax.experimental.compilation_cache import compilation_cache
from typer.testing import CliRunner

from kernax.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$",
    flags=re.MULTILINE | re.DOTALL,
)
PEERS = ("scikit-learn", "GPyTorch", "GPJax", "Python", "Dask", "Ray", "MPI", "SLURM", "Spark")
ROOMS = (
    "bijectors",
    "data",
    "fitting",
    "forecasting",
    "grams",
    "io",
    "kernels",
    "learners",
    "means",
    "model",
    "noises",
    "observe",
    "parameters",
)
ROOMS += (
    "plot",
    "posterior",
    "priors",
    "reports",
    "rows",
    "search",
    "selection",
    "sklearn",
    "solvers",
    "statistics",
    "tables",
)


def fences(page: Path) -> list[tuple[str, str]]:
    """The info string and the text of every fenced block."""
    return [(block["info"].strip(), textwrap.dedent(block["body"])) for block in FENCE.finditer(page.read_text())]


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


def commands(text: str) -> list[str]:
    """The lines of a shell block that call the command line, those that a backslash breaks put together again."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("kernax ")]


RUNNING = [page for page in PAGES if any(info == "python" for info, _ in fences(page))]


@pytest.fixture(autouse=True)
def _pictures_go_nowhere():
    mpl.use("Agg")
    yield
    plt.close("all")


@pytest.fixture(autouse=True)
def _cache_ends_with_the_page():
    """A page may keep compiled programs in a folder, which the tests after it do not have."""
    yield
    if jax.config.jax_compilation_cache_dir is not None:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for info, text in fences(page):
        if info == "python":
            exec(compile(text, f"{name_of(page)}.md", "exec"), names)
        elif info == "sh":
            for line in commands(text):
                call(line)


def call(line: str) -> None:
    """One command, as from a shell."""
    outcome = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
    assert outcome.exit_code == 0, f"{line}\n{outcome.output}\n{outcome.exception!r}"


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_a_page_asks_for_double_precision_before_anything_else(page):
    """The tests run in double precision anyway, and would not notice."""
    first = next(text for info, text in fences(page) if info == "python")
    assert "jax_enable_x64" in first
    assert first.index("jax_enable_x64") < first.index("kernax")


def test_no_block_escapes():
    """Every fence has a language that this file knows what to do with, and no other one is Python in disguise."""
    for page in PAGES:
        text = page.read_text()
        assert text.count("```") == 2 * len(fences(page)), f"{page}: a fence is not closed, or nested"
        assert "~~~" not in text, f"{page}: fences are made of backticks"
        for info, _ in fences(page):
            language, _, title = info.partition(" ")
            assert language in {"python", "py", "sh", "text"}, f"{page}: a block of {info!r}"
            if language == "python":
                assert not title, f"{page}: a python block takes no options, got {info!r}"
            if language == "py":
                assert title.startswith(tuple(f'title="{peer}' for peer in PEERS)), f"{page}: {info!r} names no peer"
    assert len(RUNNING) >= 20
    others = [page for page in PAGES if page not in RUNNING]
    silent = [page for page in others for info, text in fences(page) if info == "sh" and commands(text)]
    assert not silent, "commands run on pages that have Python, too"


def resolve(path: str) -> object:
    """The object that an identifier of the reference names."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        try:
            found: object = sys.modules.get(name) or importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{path} names nothing")


def test_every_public_name_is_in_the_reference():
    listed = {
        path: resolve(path)
        for page in (DOCS / "reference").glob("*.md")
        for path in re.findall(r"^::: ([\w.]+)", page.read_text(), flags=re.MULTILINE)
    }
    shown = {id(found) for found in listed.values()}
    missing = []
    for room in ("kernax", *(f"kernax.{name}" for name in ROOMS)):
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", []):
            found = getattr(module, name)
            if type(found).__name__ != "module" and id(found) not in shown and f"{room}.{name}" not in listed:
                missing.append(f"{room}.{name}")
    assert not missing


def public_functions() -> dict[str, Callable[..., object]]:
    """Every function that a package names in `__all__`, by its first name."""
    found: dict[int, tuple[str, Callable[..., object]]] = {}
    for room in ("kernax", *(f"kernax.{name}" for name in ROOMS)):
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", []):
            function = inspect.unwrap(getattr(module, name)) if callable(getattr(module, name)) else None
            if inspect.isfunction(function):
                found.setdefault(id(function), (f"{room}.{name}", function))
    return dict(found.values())


def test_every_public_function_describes_its_arguments_and_what_it_returns():
    functions, wanting = public_functions(), []
    assert len(functions) > 150
    for name, function in functions.items():
        text = inspect.getdoc(function) or ""
        arguments = text.partition("**Arguments:**")[2].partition("**Returns:**")[0]
        heads = "\n".join(line.partition(":")[0] for line in arguments.splitlines() if line.startswith("- "))
        described = set(re.findall(r"`\*{0,2}(\w+)`", heads))
        wanting += [f"{name}: {each}" for each in inspect.signature(function).parameters if each not in described]
        wanting += [] if "**Returns:**" in text else [f"{name} does not say what it returns"]
    assert not wanting


def test_the_site_builds_without_a_warning(tmp_path, caplog, monkeypatch):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path / "site")))
    assert not [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    outside = {page.name for page in pages if re.search(r'<(?:script|link)[^>]+(?:src|href)="https?://', page.read_text())}
    assert not outside, "the site reads nothing from elsewhere"
    formulas = (tmp_path / "site" / "notebooks" / "krr_is_the_gp_mean.html").read_text()
    assert formulas.count("<math") > 20, "formulas of notebooks are drawn by the browser"
    assert "$$" not in formulas
    reference = (tmp_path / "site" / "reference").glob("*.html")
    plain = {page.name: html.unescape(re.sub(r"<[^>]+>", "", page.read_text())) for page in reference}
    assert 'Float[Array, "m *p"]' in plain["posterior.html"], "axes are shown as they are written"
    assert not [name for name, text in plain.items() if re.search(r"Array, n\b|_REQUIRED|\{\{", text)]
