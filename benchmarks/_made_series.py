"""Made series of several kinds, for the priors of forecasts and for comparing them. None is drawn from a kernel."""

import numpy as np


def made(kind: str, seed: int, rows: int, period: int) -> np.ndarray:
    """A series of a kind; `period` 1 is without a season."""
    rng = np.random.default_rng([KINDS.index(kind), seed, rows, period])
    t, errors = np.arange(rows), rng.normal(size=rows)
    size = rng.lognormal(0.0, 1.0) if period > 1 else 0.0
    return 100.0 + 10.0 * _MAKERS[kind](rng, t, errors, size * _shape(rng, period))


def _shape(rng: np.random.Generator, period: int) -> np.ndarray:
    """One season: a few waves, spread 1."""
    t = np.arange(period)
    orders = range(1, min(period // 2, 3) + 1)
    waves = [rng.normal() / k * np.cos(2 * np.pi * (k * t / period + rng.uniform())) for k in orders]
    shape = np.sum(waves, axis=0) if waves else np.zeros(period)
    return shape / max(float(np.std(shape)), 1e-9) if period > 1 else shape


def _smoothing(rng: np.random.Generator, t: np.ndarray, errors: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """The errors move level, slope and season."""
    weights = rng.uniform(0.05, 0.6), rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.3)
    level, slope, season, values = 0.0, rng.normal() * 0.05, shape.copy(), np.empty(len(t))
    for i in t:
        place = i % len(season)
        values[i] = level + slope + season[place] + errors[i]
        level, slope = level + slope + weights[0] * errors[i], 0.98 * slope + weights[1] * errors[i]
        season[place] += weights[2] * errors[i] if np.any(shape) else 0.0
    return values


def _integrated(rng: np.random.Generator, t: np.ndarray, errors: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """An autoregression of the differences, and of the differences of one season if there is one."""
    period, share, moving = len(shape), rng.uniform(-0.4, 0.7), rng.uniform(-0.6, 0.2)
    steps = np.zeros(len(t))
    for i in t[1:]:
        steps[i] = share * steps[i - 1] + errors[i] + moving * errors[i - 1]
    return np.cumsum(steps * 0.5) + shape[t % period]


def _line(rng: np.random.Generator, t: np.ndarray, errors: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """A line and a fixed season, with errors that depend on the one before."""
    share, rest = rng.uniform(0.0, 0.8), np.empty(len(t))
    rest[0] = errors[0]
    for i in t[1:]:
        rest[i] = share * rest[i - 1] + errors[i]
    return rng.normal() * 5.0 * t / len(t) + shape[t % len(shape)] + rest


def _growing(rng: np.random.Generator, t: np.ndarray, errors: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """A bent trend with a season that grows with it."""
    growth = 1.0 + rng.uniform(0.2, 2.0) * t / len(t)
    return 4.0 * growth ** rng.uniform(0.5, 1.5) + growth * shape[t % len(shape)] + errors


def _cycle(rng: np.random.Generator, t: np.ndarray, errors: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """A slow cycle without a fixed length, beside a season."""
    length, fade, state, values = rng.uniform(15.0, 60.0), rng.uniform(0.95, 0.995), np.zeros(2), np.empty(len(t))
    turn = 2 * np.pi / length
    move = fade * np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    for i in t:
        state = move @ state + 0.3 * rng.normal(size=2)
        values[i] = state[0]
    return values + shape[t % len(shape)] + 0.7 * errors


_MAKERS = {"smoothing": _smoothing, "integrated": _integrated, "line": _line, "growing": _growing, "cycle": _cycle}
KINDS = tuple(_MAKERS)
