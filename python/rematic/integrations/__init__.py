"""Plans inside the training loops of others: `transformers` (also for TRL), `lightning`, `accelerate`, `torchtitan`.

Each captures the step that really runs, when its first batch is there, plans it for a budget or for the device, and makes the
model follow the plan before that batch trains.
"""
