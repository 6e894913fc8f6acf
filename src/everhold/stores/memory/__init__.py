"""Sessions in the memory of one process: the reference for every other store."""

from everhold.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
