"""Small random models, whose gradients under random plans must be those of the plain run."""
