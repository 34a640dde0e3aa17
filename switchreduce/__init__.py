"""Lossless compressed allreduce of gradients inside a P4 switch."""

__version__ = "0.1.0"
