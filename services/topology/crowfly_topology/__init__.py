"""A node's agent: measures the devices, joins what the workers report, publishes both."""
