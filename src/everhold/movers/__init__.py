"""Movers: who calls `move` for which session, and when. One process by itself, or many workers with
leases.
"""
