"""The gallery of kernels: for each the formula, a picture, and when to use it."""

import inspect
import io

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

import kernax as kx

# The section, and for each kernel the code that makes it, and when to use it.
GALLERY = {
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
    "Functions that differ from place to place": {
        "kx.kernels.ChangePoint(kx.RBF(2.0), kx.Matern12(0.3), width=0.2)": "One kind of function before a point, another after it.",
        "kx.kernels.Gibbs(lambda x: -2.0 + 0.7 * jnp.abs(x[0]))": "Quick changes in one place, slow ones in another.",
        "kx.Warp(kx.RBF(0.5), lambda x: jnp.exp(x / 3))": "Any kernel after a change of the scale, such as a logarithm.",
    },
    "Wide networks": {
        "kx.ArcCosine(order=1)": "One infinitely wide layer of rectified linear units.",
        "kx.NNGP(depth=3)": "An infinitely wide network of several layers, with random weights.",
        "kx.NTK(depth=3)": "The same network, as gradient descent trains it.",
    },
}


def gallery() -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and its pictures by name."""
    parts = [
        "# Gallery of kernels",
        "Each picture shows the covariance of all places with three of them, and three functions drawn from the prior. The "
        "code makes the kernel that is drawn. [Choose a kernel](how-to/kernel.md) helps to decide, and shows how kernels are "
        "combined.",
    ]
    pictures: dict[str, bytes] = {}
    jax.config.update("jax_enable_x64", True)
    for section, entries in GALLERY.items():
        parts.append(f"## {section}")
        for code, use in entries.items():
            kernel = eval(code, {"kx": kx, "jnp": jnp})
            name = f"gallery/{len(pictures) + 1}.svg"
            pictures[name] = _picture(kernel)
            parts += [f"### {_title(code)}", use, f"```python\n{code}\n```"]
            if formula := _formula(kernel):
                parts.append(formula)
            parts.append(f"![Covariance of {_title(code)}, and three functions drawn from it.]({name})")
    return "\n\n".join(parts) + "\n", pictures


def _title(code: str) -> str:
    """`RBF`, or for a product `Periodic · RBF`."""
    return " · ".join(part.split("(")[0].rsplit(".", 1)[-1] for part in code.split(" * kx."))


def _formula(kernel: kx.AbstractKernel) -> str:
    """The first sentence of the class's docstring; nothing for a kernel made of others."""
    if isinstance(kernel, kx.kernels.Product):
        return ""
    return (inspect.getdoc(type(kernel)) or "").split("\n\n")[0].replace("\n", " ")


def _picture(kernel: kx.AbstractKernel) -> bytes:
    with mpl.rc_context({"svg.hashsalt": "kernax", "svg.fonttype": "path"}):
        axes = kx.plot.kernel(kernel, np.linspace(-4, 4, 161), key=jax.random.key(1))
        figure = axes[0].figure
        figure.set_size_inches(8.0, 2.6)
        file = io.BytesIO()
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
        mpl.pyplot.close(figure)
    return file.getvalue()
