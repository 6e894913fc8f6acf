"""Entry points: how installed packages register stores, models and plugins.

    [project.entry-points."everhold.stores"]
    redis = "my_package.store:open_store"

Rules
  1. Only entry points that are asked for by name are imported.
  2. Those of everhold itself win. A name that two other packages register is refused with
     `EntryPointConflict`.
  3. One that cannot be imported is refused with `BrokenEntryPoint`, which names the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.errors import BrokenEntryPoint, EntryPointConflict

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

STORES: Final = "everhold.stores"
MODELS: Final = "everhold.models"
PLUGINS: Final = "everhold.plugins"
_OWN: Final = "everhold"


class RegisteredObject(msgspec.Struct, frozen=True):
    """An object that a package registers under a name."""

    group: str
    name: str
    distribution: str
    value: Any

    def refuse(self, reason: str) -> BrokenEntryPoint:
        """The error for a value that does not fit its group."""
        return BrokenEntryPoint(self.group, self.name, self.distribution, reason)


def list_entry_point_names(group: str) -> list[str]:
    """The names that installed packages register, sorted."""
    return sorted({point.name for point in _read_entry_points(group)})


def load_entry_point(group: str, name: str) -> RegisteredObject | None:
    """Import the object that is registered under a name; None if there is none.

    Raises `EntryPointConflict` and `BrokenEntryPoint`.
    """
    points = [point for point in _read_entry_points(group) if point.name == name]
    own = [point for point in points if _distribution(point) == _OWN]
    found = own[:1] or points
    if len(found) > 1:
        raise EntryPointConflict(group, name, sorted(map(_distribution, found)))
    if not found:
        return None
    (point,) = found
    try:
        value = point.load()
    except Exception as error:  # importing another package may raise anything
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise BrokenEntryPoint(
            group, name, _distribution(point), f"cannot be loaded: {words}"
        ) from error
    return RegisteredObject(group, name, _distribution(point), value)


def _read_entry_points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return list(entry_points(group=group))


def _distribution(point: EntryPoint) -> str:
    return "?" if point.dist is None else point.dist.name
