"""The dispatcher: the map in memory, one decision per request, and the claim on the worker."""
