"""From a chain of stages to one DataFrame."""
