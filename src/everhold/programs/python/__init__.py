"""Runs Python programs: an `async def` on a deterministic event loop."""
