"""The seams of the system: everything an adapter may implement, and what programs are written
against.

Words in capitals are promises. Each MUST of `store.py` is a test in `everhold.testing.conformance`;
an adapter that passes them needs no other proof.
"""
