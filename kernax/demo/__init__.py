"""The demonstration: weekly CO₂ at Mauna Loa, fitted with a composed kernel and forecast. `python -m kernax.demo`."""
