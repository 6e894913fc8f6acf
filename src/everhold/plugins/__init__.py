"""Plugins of our own. They use nothing but `everhold.hooks`; whoever writes another has the same at
hand.
"""
