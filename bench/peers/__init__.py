"""The peers: each a worker in its own environment, made from the pins beside it. See
bench/environment.py.
"""
