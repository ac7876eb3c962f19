"""Nexmark, the benchmark of stream processors, as programs on keyed: a generator of events, and its queries.

Nexmark simulates an auction site: people register, open auctions and bid (https://github.com/nexmark/nexmark).
``python -m examples.nexmark`` generates events and runs queries over them.
"""
