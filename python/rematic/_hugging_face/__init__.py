"""Steps of models that transformers knows and Rematic does not: what `rematic stats config.json` starts Python for."""
