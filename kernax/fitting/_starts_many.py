"""Where the fits of many datasets start."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from kernax.data import Data
from kernax.fitting._fingerprints import described
from kernax.fitting._identity import of_start
from kernax.fitting._lanes import stacked as stacked_trees
from kernax.fitting._loop import Rules, start
from kernax.fitting._models import Models
from kernax.fitting._programs import Packing, Vectors, compiled
from kernax.fitting._starts import initialise as initialised
from kernax.fitting._starts import starting_points
from kernax.fitting._streams import Begin, Layout
from kernax.model import AbstractModel
from kernax.parameters import as_dtype, split
from kernax.parameters import trainable as all_trainable


class Starts:
    """Where the lanes start, and what is held meanwhile."""

    def __init__(
        self,
        models: Models,
        trainable: AbstractModel | None,
        initialise: bool,
        restarts: int,
        key: Key[Array, ""] | None,
        dtype: Any,
        rules: Rules,
    ):
        self.models, self._initialise, self._restarts, self._key = models, initialise, restarts, key
        self._trainable = all_trainable(models.model) if trainable is None else trainable
        self._dtype, self._rules = dtype, rules
        _, self.held = eqx.partition(models.model, self._trainable)
        state = eqx.filter_eval_shape(lambda m: start(split(m, self._trainable)[0], dtype, rules), models.example)
        self.packing = Packing.of(state)
        self.number = restarts + 1
        """Starts of each dataset."""
        self._common: Vectors | None = None

    def of(self, data: Data, numbers: np.ndarray, layout: Layout) -> Begin:
        """The packed first states of a stream's lanes."""
        lanes_each = self.number
        if self.models.number is None and not self._initialise:
            if self._common is None:
                self._common = tuple(np.asarray(row) for row in self._rows(None, self.models.model, None))
            return lambda lanes: tuple(row[lanes % lanes_each] for row in self._common or ())

        own, common = eqx.partition(self.models.model, lambda leaf: eqx.is_array(leaf) and self.models.number is not None)

        def begin(lanes: np.ndarray) -> Vectors:
            # Always as many as there are places, so that one program serves all calls.
            places = np.resize(lanes // lanes_each, layout.places)
            some = jax.tree.map(lambda leaf: leaf[places], data) if self._initialise else None
            rows = self._rows(jax.tree.map(lambda leaf: leaf[numbers[places]], own), common, some)
            return tuple(np.asarray(row)[np.arange(len(lanes)), lanes % lanes_each] for row in rows)

        return begin

    def _rows(self, own: AbstractModel | None, common: AbstractModel, data: Data | None) -> Vectors:
        settings = (self._trainable, self._initialise, self._restarts, self._key, self._dtype, self._rules, self.packing)
        return _first_states(own, common, data, *settings)

    def identity(self, about: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint records of the starts; `about` receives what helps to explain a difference."""
        about["model"] = described(self.models.example) if self.models.number is None else f"{self.models.number} models"
        own = of_start(self.models.model, self._trainable, self._restarts, self._key, self._dtype, about)
        return own | {"initialise": self._initialise}


@compiled
def _first_states(
    own: AbstractModel | None,
    common: AbstractModel,
    data: Data | None,
    trainable: AbstractModel,
    initialise: bool,
    restarts: int,
    key: Key[Array, ""] | None,
    dtype: Any,
    rules: Rules,
    packing: Packing,
) -> Vectors:
    """The packed first states of every start, of one dataset or (with own models or data) of a batch of them."""

    def dataset(own: AbstractModel | None, data: Data | None) -> Vectors:
        model: Any = as_dtype(eqx.combine(own, common), dtype)
        # What is held keeps the given values: only the free parameters are read off.
        model = model if data is None else initialised(model, data)
        free, _ = split(model, trainable)
        frees = stacked_trees(starting_points(model, free, restarts, key))
        return jax.vmap(lambda free: packing.pack(start(free, dtype, rules)))(frees)

    if data is None and not jax.tree.leaves(eqx.filter(own, eqx.is_array)):
        return dataset(own, data)
    return jax.vmap(dataset)(own, data)
