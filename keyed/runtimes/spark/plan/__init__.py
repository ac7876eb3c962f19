"""Compilation of a chain of stages to one DataFrame."""
