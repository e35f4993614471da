"""One HTML page about a model, with nothing outside of it."""

import dataclasses
import html
from typing import Any

import numpy as np

from kernax.cli._fit import column_rows
from kernax.cli._pictures import pictures, pictures_of_many
from kernax.tables import ManyTableFits, TableFit

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 1120px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p.sub { color: #555; margin-top: .2rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #e3e3e3; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } th.n { text-align: right; }
code { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1.4rem; }
figure { margin: 0; } figure img { width: 100%; height: auto; } figure h3 { font-size: 1rem; margin: 0; }
figcaption { font-size: .88rem; color: #444; }
"""
_MOST_GROUPS = 20
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(fitted: TableFit | ManyTableFits, name: str) -> str:
    """The page, as text. All words that come from the table are escaped."""
    title = f"{fitted.target.name} from {', '.join(column.name for column in fitted.columns)}"
    if isinstance(fitted, TableFit):
        c = fitted.conditioned()
        report = fitted.report(c)
        x, y, drawn, worst = fitted.data.x, fitted.data.y, pictures(fitted, c), []
    else:
        report = fitted.report()
        title += f": {len(fitted)} models by {fitted.by}"
        errors = fitted.loo_rmse()
        x, y, drawn, worst = fitted.x, fitted.y, pictures_of_many(fitted, errors), _worst(fitted, errors)
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="sub">{_text(name)}: {len(y)} rows of {_text(fitted.source)}; kernel '
        f"<code>{_text(fitted.kernel)}</code>, chosen by {_text(fitted.selected_by)}.</p>",
        *_advice(fitted, report),
        f"<h2>{'The fit' if isinstance(fitted, TableFit) else 'The fits'}</h2>",
        _report(report),
        *worst,
        "<h2>Columns</h2>",
        _columns(fitted, np.asarray(x, np.float64), np.asarray(y, np.float64)),
        "<h2>Pictures</h2>",
        '<div class="pictures">',
        *(_figure(*picture) for picture in drawn),
        "</div>",
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _advice(fitted: TableFit | ManyTableFits, report: Any) -> list[str]:
    sentences = [*report.advice, *fitted.notes]
    if not sentences:
        return []
    return ["<h2>What to know</h2>", "<ul>", *(f"<li>{_text(sentence)}</li>" for sentence in sentences), "</ul>"]


def _report(report: Any) -> str:
    # Its advice stands at the top of the page.
    return f'<div class="wide">{dataclasses.replace(report, advice=())._repr_html_()}</div>'


def _columns(fitted: TableFit | ManyTableFits, x: np.ndarray, y: np.ndarray) -> str:
    """How each column is read, with its quartiles."""
    rows = column_rows(fitted)
    for row, column, values in zip(rows, (*fitted.columns, fitted.target), (*x.T, y), strict=True):
        quarters = column.restored(np.quantile(values, (0.25, 0.5, 0.75)))
        row |= dict(zip(("25 %", "50 %", "75 %"), map(column.shown, quarters), strict=True))
    return _table(rows, ("column", "role", "read as"), ("mean", "sd", "from", "25 %", "50 %", "75 %", "to"))


def _worst(fitted: ManyTableFits, errors: np.ndarray) -> list[str]:
    """The groups to look at first: those that did not end well, then those that are predicted worst."""
    table = fitted.table()
    ended_well = table["result"] == "successful"
    order = np.lexsort((-np.nan_to_num(errors, nan=np.inf), ended_well))[:_MOST_GROUPS]
    rows = [
        {
            fitted.by: table["dataset"][i],
            "result": table["result"][i],
            "at a bound": table["at_bound"][i],
            "rows": table["rows"][i],
            "leave-one-out RMSE": f"{errors[i]:.4g}" if np.isfinite(errors[i]) else "–",
        }
        for i in order
    ]
    words, numbers = (fitted.by, "result", "at a bound"), ("rows", "leave-one-out RMSE")
    return ["<h2>Groups to look at first</h2>", _table(rows, words, numbers)]


def _table(rows: list[dict[str, Any]], words: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """Rows as a table: columns of words on the left, of numbers on the right."""
    kinds = {**dict.fromkeys(words, ""), **dict.fromkeys(numbers, ' class="n"')}
    head = "".join(f"<th{kind}>{_text(name)}</th>" for name, kind in kinds.items())
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{_text(row[name])}</td>" for name, k in kinds.items()) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _figure(title: str, picture: str, caption: str) -> str:
    return (
        f'<figure><h3>{_text(title)}</h3><img alt="{_text(title)}. {_text(caption)}" '
        f'src="data:image/png;base64,{picture}"><figcaption>{_text(caption)}</figcaption></figure>'
    )
