"""What capturing a step and applying a plan both know of a model."""
