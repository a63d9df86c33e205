"""A worker: one model on one device, and the wire around it."""
