"""The size budget: a module holds one idea, so it stays under WARN lines and may never pass LIMIT.

EXCEPTIONS is the only way around, is closed, and may only shrink: a module on it that fits again, or no
longer exists, is an error too. Tests are not counted.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTED = ("src", "tools", "bench")
WARN = 400
LIMIT = 600

# path from the root: why it cannot be split
EXCEPTIONS: Mapping[str, str] = {}


def findings(lengths: Mapping[str, int], exceptions: Mapping[str, str] = EXCEPTIONS) -> tuple[list[str], list[str]]:
    """Sort modules by length into warnings and errors."""
    warnings, errors = [], []
    for path, lines in sorted(lengths.items()):
        if path in exceptions:
            if lines <= LIMIT:
                errors.append(f"{path}: {lines} lines fit the limit of {LIMIT}; take it off EXCEPTIONS")
        elif lines > LIMIT:
            errors.append(f"{path}: {lines} lines, the limit is {LIMIT}; split it by noun")
        elif lines > WARN:
            warnings.append(f"{path}: {lines} lines, the budget is {WARN}")
    errors += [f"{path}: on EXCEPTIONS, but there is no such module" for path in exceptions if path not in lengths]
    return warnings, errors


def lengths() -> dict[str, int]:
    """Count the lines of every module that the budget covers."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for room in COUNTED
        for path in (ROOT / room).rglob("*.py")
    }


def main() -> int:
    counted = lengths()
    warnings, errors = findings(counted)
    for line in warnings:
        print(f"size warning: {line}")
    for line in errors:
        print(f"size error: {line}")
    if not errors:
        print(f"sizes: {len(counted)} modules, the longest has {max(counted.values(), default=0)} lines")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
