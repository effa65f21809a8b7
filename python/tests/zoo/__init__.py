"""Models as other people wrote them, tiny and with random weights: what is promised of their steps, and what happens."""
