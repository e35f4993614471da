"""Pictures of the gallery for kernels of other inputs than one number: levels, nodes, sets, maps; and of splines."""

import itertools
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import kernax as kx

COLOURS = ("#0072b2", "#d55e00", "#009e73")


def of_levels(kernel: Any) -> Any:
    """The covariance of the levels, and a function of x for each level."""
    return _of_labels(kernel.matrix(), kernel.levels, kernel * kx.Select(kx.RBF(1.0), key="x"), kernel.key)


def of_tasks(kernel: Any) -> Any:
    """The covariance of the tasks, and a function of x for each task."""
    tasks = kernel.kernels[0].matrix()
    return _of_labels(tasks, [f"task {i}" for i in range(len(tasks))], kernel, "task")


def _of_labels(matrix: Any, names: Any, kernel: Any, key: str) -> Any:
    figure, axes = _panels()
    _draw_matrix(axes[0], matrix, names)
    places = np.linspace(-4, 4, 81)
    rows = {"x": np.tile(places, len(names))[:, None], key: np.repeat(np.arange(len(names)), len(places))}
    for name, line, colour in zip(names, drawn(kernel, rows).reshape(len(names), -1), COLOURS, strict=False):
        axes[1].plot(places, line, color=colour, label=str(name))
    axes[1].set(xlabel="$x$", ylabel="$f(x)$", title="a function for each, drawn together")
    axes[1].legend(fontsize="small", ncols=len(names))
    return figure


def of_combinations(kernel: Any) -> Any:
    """The covariance of all combinations of two columns of categories, and a value drawn for each."""
    colours, sizes = ("red", "blue"), ("S", "M", "L")
    rows = np.array(list(itertools.product(range(2), range(3))))
    return _matrix_and_values(kernel, rows, [f"{colours[a]} {sizes[b]}" for a, b in rows])


def of_sets(kernel: Any) -> Any:
    """Sets as rows of 0 and 1, and their covariance."""
    rows = np.array([[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]])
    names = [f"set {letter}" for letter in "ABCD"]
    figure, axes = _panels()
    axes[0].imshow(rows, cmap="Greys", vmin=0, vmax=1.5, aspect="auto")
    axes[0].set(xlabel="element", title="the sets", yticks=range(len(names)), yticklabels=names)
    _draw_matrix(axes[1], kernel(rows.astype(float)), names)
    return figure


def of_nodes(kernel: Any) -> Any:
    """The covariance of the nodes of the gallery's graph, and a function drawn on it."""
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5)]
    at = np.array([[0, 1], [0, -1], [1.4, 0], [2.8, 0], [4.0, 0.5], [5.2, 0]])
    nodes = np.arange(6)
    kernel, rows = kx.Select(kernel, key="node"), {"node": nodes}
    figure, axes = _panels()
    _draw_matrix(axes[0], kernel(rows), nodes)
    axes[0].set_title("covariance of the nodes")
    for edge in edges:
        axes[1].plot(*at[list(edge)].T, color="#888888", zorder=1)
    shown = axes[1].scatter(*at.T, c=drawn(kernel, rows)[0], s=340, cmap="viridis", edgecolors="#444444", zorder=2)
    for node, place in zip(nodes, at, strict=True):
        box = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        axes[1].annotate(str(node), place, ha="center", va="center", fontsize=8, bbox=box)
    axes[1].set(xlim=(-0.6, 5.8), ylim=(-1.7, 1.7), title="a function drawn on the graph")
    axes[1].set_axis_off()
    figure.colorbar(shown, ax=axes[1], label="$f$")
    return figure


def of_the_sphere(kernel: Any) -> Any:
    """Maps in latitude and longitude: the covariance with one place, and a function drawn from the prior."""
    latitude, longitude = np.linspace(-87, 87, 30), np.linspace(-177, 177, 60)
    place = np.array([[47.0, 8.0]])
    names = {"xlabel": "longitude", "ylabel": "latitude", "xticks": range(-120, 121, 60), "yticks": (-60, 0, 60)}
    return _maps(kernel, latitude, longitude, place, names, swap=True)


def of_two_columns(kernel: Any) -> Any:
    """Maps over two columns: the covariance with one place, and a function drawn from the prior."""
    places = np.linspace(-3, 3, 31)
    return _maps(kernel, places, places, np.array([[1.0, -1.0]]), {"xlabel": "$x_1$", "ylabel": "$x_2$"})


def of_a_smoothing_spline(kernel: Any) -> Any:
    """The smoothing spline of a few points for three noises: splines have no prior to draw from."""
    x, y = _points()
    places = np.linspace(-4, 4, 161)[:, None]
    figure, ax = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
    for noise, colour in zip((0.01, 1.0, 100.0), COLOURS, strict=True):
        c = kx.condition(kx.Model(kernel, noise=noise), kx.Data(x[:, None], y))
        ax.plot(places, kx.mean(c, places), color=colour, label=f"noise {noise:g}")
    ax.plot(x, y, "o", color="#444444", markersize=4)
    ax.set(xlabel="$x$", ylabel="$f(x)$", title="smoothing splines of the points")
    ax.legend(fontsize="small")
    return figure


def of_a_surface(kernel: Any) -> Any:
    """The surface with the least bending through some points of the plane."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-3, 3, (25, 2))
    c = kx.condition(kx.Model(kernel, noise=1e-6), kx.Data(x, np.sin(x[:, 0]) + 0.5 * x[:, 1]))
    places = np.linspace(-3, 3, 41)
    grid = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
    figure, ax = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
    _draw_map(figure, ax, places, places, kx.mean(c, grid).reshape(41, 41).T)
    ax.plot(*x.T, "o", color="white", markeredgecolor="#444444", markersize=4)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", title="the surface through the points")
    return figure


def drawn(kernel: Any, rows: Any, number: int = 1) -> np.ndarray:
    """Functions drawn from the prior at some rows, `(number, n)`."""
    values, vectors = np.linalg.eigh(np.asarray(kernel(rows)))
    shocks = np.random.default_rng(4).normal(size=(number, len(values)))
    return (shocks * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def _points() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-4, 4, 24))
    return x, np.sin(1.3 * x) + 0.3 * rng.normal(size=24)


def _panels() -> Any:
    return plt.subplots(1, 2, figsize=(8.0, 2.6), layout="constrained")


def _matrix_and_values(kernel: Any, rows: Any, names: list[str]) -> Any:
    figure, axes = _panels()
    _draw_matrix(axes[0], kernel(rows), names)
    axes[0].tick_params(axis="x", labelrotation=45)
    axes[1].bar(names, drawn(kernel, rows)[0], color=COLOURS[0])
    axes[1].axhline(0.0, color="#444444", linewidth=0.8)
    axes[1].tick_params(axis="x", labelrotation=45)
    axes[1].set(ylabel="$f$", title="values drawn from the prior")
    return figure


def _draw_matrix(ax: Any, matrix: Any, names: Any) -> None:
    """A covariance matrix with its numbers and the names of its rows."""
    matrix = np.asarray(matrix)
    ax.imshow(matrix, cmap="viridis", vmin=min(0.0, matrix.min()), vmax=matrix.max())
    middle = 0.5 * (min(0.0, matrix.min()) + matrix.max())
    for i, j in itertools.product(range(len(matrix)), repeat=2):
        colour = "black" if matrix[i, j] > middle else "white"
        ax.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", color=colour, fontsize=7)
    ax.set(xticks=range(len(matrix)), yticks=range(len(matrix)), title="covariance")
    ax.set_xticklabels(names, fontsize=8)
    ax.set_yticklabels(names, fontsize=8)


def _maps(kernel: Any, first: Any, second: Any, place: Any, names: dict[str, Any], swap: bool = False) -> Any:
    """The covariance with a place, and a function, over the grid of two columns; `swap` draws the first column upwards."""
    rows = np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(-1, 2)
    maps = [np.asarray(kernel(rows, place))[:, 0], drawn(kernel, rows)[0]]
    across, up = (second, first) if swap else (first, second)
    figure, axes = _panels()
    for ax, values, title in zip(
        axes, maps, ("covariance with the place ×", "a function drawn from the prior"), strict=True
    ):
        values = values.reshape(len(first), len(second))
        _draw_map(figure, ax, across, up, values if swap else values.T)
        ax.set(title=title, **names)
    axes[0].plot(*(place[0, ::-1] if swap else place[0]), "x", color="#d55e00", markersize=8, markeredgewidth=2)
    return figure


def _draw_map(figure: Any, ax: Any, across: Any, up: Any, values: Any) -> None:
    image = ax.pcolormesh(across, up, values, cmap="viridis", shading="nearest", rasterized=True)
    figure.colorbar(image, ax=ax)
