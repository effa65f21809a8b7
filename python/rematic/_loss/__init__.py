"""The cross-entropy of a model's last linear layer, computed over parts of its rows."""
