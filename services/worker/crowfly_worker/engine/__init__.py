"""Scheduling and running sequences on one device; `port.py` is the door."""
