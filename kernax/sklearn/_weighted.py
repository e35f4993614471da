"""A Gaussian process whose rows have weights."""

from typing import Any

from jaxtyping import Float

from kernax.kernels import AbstractKernel
from kernax.model import AbstractModel, Model
from kernax.model._model import check_kernel
from kernax.parameters import Parameter, non_negative, positive


class WeightedModel(AbstractModel):
    """`Model` with the noise `noise / weights`: one number is fitted for all rows, and the weights are to be held."""

    kernel: AbstractKernel
    noise: Float[Parameter, "*n"] = non_negative()
    weights: Float[Parameter, " n"] = positive()

    def __check_init__(self):
        check_kernel(self)

    @property
    def plain(self) -> Model:
        """The same with a noise for each row."""
        return Model(self.kernel, self.noise / self.weights)

    @property
    def is_per_row(self):
        return True

    def check(self, data, caller):
        self.plain.check(data, caller)

    def conditioned(self, data, finite, solver):
        return self.plain.conditioned(data, finite, solver)

    def initialised(self, data):
        start: Any = Model(self.kernel, self.noise).initialised(data)
        return WeightedModel(start.kernel, start.noise, self.weights)
