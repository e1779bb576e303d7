"""Named things of one kind, kept in the order users see them."""

import functools
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from tdbg.core.errors import TdbgError, suggest_name


class Named(Protocol):
    """Anything that can stand in a registry: an object or a class with a ``name``."""

    @property
    def name(self) -> str: ...


T = TypeVar("T")


class Registry(Generic[T]):
    """The one list of a kind: probes, rules, log formats, launchers, sinks.

    package: where the members live, one file each; all are imported in name order at the first
        look-up, so that adding a member is adding a file.
    is_numbered: its files are named after the number in a code: the rule TD-N002 is in ``n002_dead_run``.
    group: the entry-point group third parties use; it is read only when a name is unknown, or by
        `load_third_party`, because a scan costs about as much as importing a CLI library.
    """

    def __init__(self, kind: str, *, package: str = "", group: str = "", is_numbered: bool = False) -> None:
        self.kind = kind
        self.package = package
        self._is_numbered = is_numbered
        self.group = group
        self._items: dict[str, T] = {}
        self._loaded = not package
        self.broken: dict[str, BaseException] = {}  # files that could not be imported
        self._third_party_loaded = not group

    def add(self, item: T) -> T:
        """Register ``item`` under its ``name``; also serves as a class decorator."""
        name: str = item.name  # type: ignore[attr-defined]
        if name in self._items and self._items[name] is not item:
            raise ValueError(f"two {self.kind}s are named {name!r}")
        self._items[name] = item
        return item

    def load(self) -> None:
        """Import every file of ``package`` once; each registers itself on import, or is listed in ``broken``."""
        if self._loaded:
            return
        self._loaded = True  # set first: a member may read the registry while it is imported
        names = self._list_files()
        for name in names:
            self._import_module(name)
        place = {f"{self.package}.{name}": at for at, name in enumerate(names)}  # some may have been loaded before
        found = sorted(self._items.items(), key=lambda pair: place.get(_module_of(pair[1]), len(names)))
        self._items.clear()  # the same dictionary, in the order of the files
        self._items.update(found)

    def _list_files(self) -> list[str]:
        import pkgutil

        path = importlib.import_module(self.package).__path__
        return sorted(module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_"))

    @property
    def is_loaded(self) -> bool:
        """True once every file of ``package`` was imported."""
        return self._loaded

    def load_from_files(self, files: Iterable[str]) -> list[T]:
        """The members that these files of ``package`` hold, without loading the others."""
        for name in files:
            self._import_module(name)
        modules = {f"{self.package}.{name}" for name in files}
        return [item for item in self._items.values() if _module_of(item) in modules]

    def _import_module(self, name: str) -> None:
        whole = f"{self.package}.{name}"
        try:
            importlib.import_module(whole)
        except Exception as error:  # guard: one broken file must not take the others with it
            self.broken[whole] = error

    def load_third_party(self) -> list[str]:
        """Import what other packages registered under ``group``; returns what failed, a line each."""
        if self._third_party_loaded:
            return []
        self._third_party_loaded = True
        return self.add_entry_points(points_of(self.group))

    def add_entry_points(self, points: Mapping[str, str]) -> list[str]:
        """Import members by ``module:attribute``, by name; returns what failed, a line each."""
        failed = []
        for name, point in points.items():
            module, _, attribute = point.partition(":")
            try:
                found: Any = importlib.import_module(module)
                item: Any = functools.reduce(getattr, attribute.split("."), found)
                if self._is_built_in(item.name):
                    raise ValueError(f"{item.name!r} is the name of a built-in {self.kind}")
                self.add(item)
            except (Exception, SystemExit) as error:  # guard: a stranger's package must not take us down
                self.broken[point] = error
                failed.append(f"{self.kind} {name!r} of {point}: {error}")
        return failed

    def _is_built_in(self, name: str) -> bool:
        """True if a file of ``package`` holds the member of this name; no file is imported for that."""
        files = self._list_files() if self.package else []
        if self._is_numbered:
            return name.upper().removeprefix("TD-").lower() in {file.partition("_")[0] for file in files}
        return name.replace("-", "_") in files

    def list_third_party(self) -> list[T]:
        """The members that are not of ``package``."""
        return [item for item in self._items.values() if not _module_of(item).startswith(f"{self.package}.")]

    def names(self) -> list[str]:
        """Every registered name, in order."""
        self.load()
        return list(self._items)

    def __iter__(self) -> Iterator[T]:
        self.load()
        return iter(list(self._items.values()))

    def __contains__(self, name: str) -> bool:
        self.load()
        return name in self._items

    def __getitem__(self, name: str) -> T:
        self.load()
        if name not in self._items:
            self.load_third_party()
        if name in self._items:
            return self._items[name]
        hint = suggest_name(name, self._items, f"known: {', '.join(self._items)}")
        raise TdbgError(f"no {self.kind} is named {name!r}", hint)


def points_of(group: str) -> dict[str, str]:
    """What installed packages registered under an entry-point group: name -> ``module:attribute``."""
    if not _is_named_by_a_package(group):
        return {}
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


def _is_named_by_a_package(group: str) -> bool:
    """True if a package registered something under the group, or may have."""
    texts = _read_entry_points(tuple(sys.path))
    return texts is None or f"[{group}]".encode() in texts


@functools.cache
def _read_entry_points(path: tuple[str, ...]) -> bytes | None:
    """The entry points of all packages, as they stand in their files; None where a package has none of its own.

    To read them takes a tenth of the time that it takes to import what parses them.
    """
    found = []
    for place in path:
        try:
            names = [name for name in os.listdir(place or ".") if name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            if os.path.isfile(place):  # a packed one
                return None
            continue
        if place.endswith(".egg"):  # it holds a package and what is said of it
            return None
        for name in names:
            try:
                found.append(_read_file(f"{place or '.'}/{name}/entry_points.txt"))
            except OSError:  # it registers nothing
                continue
    return b"\n".join(found)


def _read_file(path: str) -> bytes:
    """The bytes of a small file, of which there may be hundreds: a file object each would take three times as long."""
    handle = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def _module_of(item: object) -> str:
    return str(getattr(item, "__module__", ""))
