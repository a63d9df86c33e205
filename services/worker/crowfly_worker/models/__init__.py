"""The networks, each a forward pass over one packed batch."""
