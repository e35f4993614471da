"""The gallery of kernels: for each the formula, a picture, and when to use it."""

import inspect
import io
from collections.abc import Callable
from typing import Any

import gallery_pictures as draw  # beside this file
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

import kernax as kx

_GRAPH = """edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5)]
ends = np.zeros((6, len(edges)))  # +1 and -1 at the two ends of each edge
for number, (a, b) in enumerate(edges):
    ends[a, number], ends[b, number] = 1, -1
kx.kernels.Graph(ends @ ends.T, 1.5)"""

# The section, and for each kernel the code that makes it, and when to use it; also how it is drawn, if not as a function of
# one column.
GALLERY: dict[str, dict[str, str | tuple[str, Callable[[Any], Any]]]] = {
    "Smooth functions": {
        "kx.RBF(1.0)": "Very smooth functions, such as those of physical laws. Too smooth for most measured quantities.",
        "kx.Matern52(1.0)": "The usual choice for measured quantities: smooth, but not infinitely so.",
        "kx.Matern32(1.0)": "Functions with a slope everywhere, but with sudden bends.",
        "kx.Matern12(1.0)": "Continuous and rough functions, such as prices.",
        "kx.Matern(1.0, nu=1.0)": "If the roughness itself is to be fitted. Slower than the three other Matérn kernels.",
        "kx.RationalQuadratic(1.0, alpha=0.3)": "Functions that vary on several scales at once.",
        "kx.kernels.Wendland(2.0)": "Values that are independent beyond a distance. Most entries of the matrix are then 0.",
    },
    "Repeating functions": {
        "kx.Periodic(1.0, period=3.0)": "Exact repetition: seasons, days, rotations.",
        "kx.Periodic(1.0, period=3.0) * kx.RBF(4.0)": "Repetition whose shape drifts slowly.",
        "kx.Cosine(period=3.0)": "One pure wave. In long series, sums of cosines are cheap.",
        "kx.kernels.SHO(period=3.0, quality=5.0)": "Waves whose height and phase drift.",
        "kx.kernels.SpectralMixture([0.7, 0.3], [[0.3], [0.8]], [[0.05], [0.05]])": "A few waves of unknown frequencies.",
    },
    "Lines and polynomials": {
        "kx.Constant(1.0)": "An unknown level. Add it to another kernel.",
        "kx.Linear()": "Straight lines through the origin. Add `kx.Constant()` for an intercept.",
        "kx.Polynomial(degree=2)": "Polynomials up to a degree. They grow fast outside of the data.",
    },
    "Splines": {
        "kx.CubicSpline()": (
            "A smooth curve without a lengthscale to choose: `noise` alone says how smooth, from a curve through all points "
            "to the straight line of least squares. Straight lines are free, so there is no prior to draw from.",
            draw.of_a_smoothing_spline,
        ),
        "kx.ThinPlate(order=2)": (
            "The same in two columns: the surface with the least bending. `order=2` suits two or three columns.",
            draw.of_a_surface,
        ),
    },
    "Functions that differ from place to place": {
        "kx.kernels.ChangePoint(kx.RBF(2.0), kx.Matern12(0.3), width=0.2)": (
            "One kind of function before a point, another after it."
        ),
        "kx.kernels.Gibbs(lambda x: -2.0 + 0.7 * jnp.abs(x[0]))": "Quick changes in one place, slow ones in another.",
        "kx.Warp(kx.RBF(0.5), lambda x: jnp.exp(x / 3))": "Any kernel after a change of the scale, such as a logarithm.",
    },
    "Wide networks": {
        "kx.ArcCosine(order=1)": "One infinitely wide layer of rectified linear units.",
        "kx.NNGP(depth=3)": "An infinitely wide network of several layers, with random weights.",
        "kx.NTK(depth=3)": "The same network, as gradient descent trains it.",
    },
    "Several columns": {
        "kx.kernels.Additive(kx.RBF(1.0), order=1, columns=2)": (
            "Sums of functions of one column each; `order=2` adds interactions of two columns. It needs far fewer rows than "
            "a kernel of all columns together if the columns act separately.",
            draw.of_two_columns,
        ),
        "kx.kernels.OrthogonalAdditive(kx.RBF(1.0), order=2, columns=2)": (
            "If you want to know what each column does: effects and interactions are separated, and their variances add up "
            "([Sobol indices](how-to/sensitivity.md)).",
            draw.of_two_columns,
        ),
    },
    "Categories and tasks": {
        'kx.kernels.Categorical("city", ["Bern", "Oslo", "Rome"], correlation=0.7)': (
            "Columns of text: `k(s, t)` is 1 if s = t and the `correlation` if not (with `rank=`, as for tasks below). "
            "Multiply it by a kernel of the numbers: each category then has its own function, and similar "
            'categories learn from each other. The functions below are drawn with `Select(RBF(1.0), key="x")`.',
            draw.of_levels,
        ),
        "kx.kernels.ICM(kx.RBF(1.0), number=3, rank=2)": (
            "[Several correlated outputs](how-to/outputs.md). The kernel is `[B Bᵀ + diag(v)]_st · kernel(a, b)` for rows a "
            "and b of the tasks s and t: a `kx.kernels.Coregion` of the tasks times a kernel of the inputs. B and v "
            "are fitted.",
            draw.of_tasks,
        ),
        "kx.kernels.Hamming([1.0, 2.0])": (
            "Many columns of categories, and sequences of equal lengths such as DNA.",
            draw.of_combinations,
        ),
    },
    "Sets, graphs and the sphere": {
        "kx.kernels.Tanimoto()": (
            "Sets and counts: molecular fingerprints, words of a text, baskets of goods.",
            draw.of_sets,
        ),
        _GRAPH: (
            "Nodes of a graph whose neighbours are similar: rivers, roads, social networks. With `nu=` it is a Matérn "
            "kernel.",
            draw.of_nodes,
        ),
        "kx.kernels.Sphere(kx.Matern32(2000.0), radius=6371.0)": (
            "Places on the Earth. The kernel is that of three columns, of the straight distance through the sphere: rows "
            "are `(latitude, longitude)` in degrees, and the lengthscale is in kilometres here.",
            draw.of_the_sphere,
        ),
    },
    "Noise": {
        "kx.kernels.White(1.0)": "Values that are independent at different inputs, such as an effect of each site.",
    },
}


_FORMULA_BELOW = (kx.kernels.SHO, kx.kernels.Gibbs, kx.NNGP)
"""Kernels whose formula is in the second paragraph of the docstring."""


def gallery() -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and its pictures by name."""
    parts = [
        "# Gallery of kernels",
        "For each kernel: when to use it, the code that makes the kernel of the picture, and its formula. Kernels of one "
        "column are drawn as the covariance of all places with three of them, and three functions drawn from the prior. "
        "[Choose a kernel](how-to/kernel.md) helps to decide, and shows how kernels are combined.",
    ]
    pictures: dict[str, bytes] = {}
    jax.config.update("jax_enable_x64", True)
    for section, entries in GALLERY.items():
        parts.append(f"## {section}")
        for code, entry in entries.items():
            use, drawing = (entry, _curves) if isinstance(entry, str) else entry
            kind = "curves" if drawing in (_curves, draw.of_a_smoothing_spline) else "picture"
            kernel, name = _made(code), f"gallery/{kind}_{len(pictures) + 1}.svg"
            pictures[name] = _picture(kernel, drawing)
            parts += [f"### {_title(code)}", use, f"```python\n{code}\n```"]
            if formula := _formula(kernel):
                parts.append(formula)
            what = "Covariance of {}, and functions drawn from it." if drawing is _curves else "What {} describes."
            parts.append(f"![{what.format(_title(code))}]({name})")
    return "\n\n".join(parts) + "\n", pictures


def _made(code: str) -> kx.AbstractKernel:
    """The value of the last line."""
    *before, last = code.splitlines()
    names = {"kx": kx, "jnp": jnp, "np": np}
    exec("\n".join(before), names)
    return eval(last, names)


def _title(code: str) -> str:
    """`RBF`, or for a product `Periodic · RBF`."""
    code = code.splitlines()[-1]
    return " · ".join(part.split("(")[0].rsplit(".", 1)[-1] for part in code.split(" * kx."))


def _formula(kernel: kx.AbstractKernel) -> str:
    """The paragraph of the class's docstring that has the formula; nothing for a kernel made of others."""
    if isinstance(kernel, kx.kernels.Product) or isinstance(
        getattr(kernel, "transform", None), kx.kernels.LatitudeLongitude
    ):
        return ""
    paragraphs = (inspect.getdoc(type(kernel)) or "").split("\n\n")
    number = 2 if isinstance(kernel, _FORMULA_BELOW) else 1
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs[:number])


def _curves(kernel: kx.AbstractKernel) -> Any:
    figure: Any = kx.plot.kernel(kernel, np.linspace(-4, 4, 161), key=jax.random.key(1))[0].figure
    figure.set_size_inches(8.0, 2.6)
    return figure


def _picture(kernel: kx.AbstractKernel, drawing: Callable[[Any], Any]) -> bytes:
    with mpl.rc_context({"svg.hashsalt": "kernax", "svg.fonttype": "path"}):
        figure = drawing(kernel)
        file = io.BytesIO()
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
        mpl.pyplot.close(figure)
    return file.getvalue()
