"""Ports: the interfaces that adapters implement, and those that programs are written against.

Words in capitals are promises. Each MUST of `store.py` is a test in `everhold.testing.conformance`;
an adapter that passes these tests is complete.
"""
