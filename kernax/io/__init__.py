"""Save and load: one file, arrays by safetensors, structure as JSON, nothing that could run."""
