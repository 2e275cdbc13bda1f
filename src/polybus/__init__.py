"""Polybus: one bus for many protocols."""

__version__ = "0.1.0"
