"""Commands that run something."""

from __future__ import annotations

import click


@click.command("demo")
def demo_() -> int:
    """Kill a program in the middle and see it go on: 20 seconds, no key."""
    from everhold.fronts.cli.demo.show import demo
    from everhold.fronts.wire import Exit

    return Exit.OK if demo() else Exit.FAILED
