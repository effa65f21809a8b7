"""The parts of apply: what a plan decides, how it is followed while the model runs, and where modules are wrapped."""
