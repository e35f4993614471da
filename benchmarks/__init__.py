"""Benchmarks: `python -m benchmarks` prints kernax's speed, memory and accuracy, as ratios to peers measured in one run."""
