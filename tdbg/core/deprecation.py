"""Old names that other packages still use or override: each works on, and a DeprecationWarning names the new one."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., object])


def warn_renamed(owner: str, old: str, new: str, *, stacklevel: int = 3) -> None:
    """Name the new name of a member of ``owner``. A program that makes errors of warnings runs on."""
    try:
        warnings.warn(f"{owner}.{old} is now {owner}.{new}", DeprecationWarning, stacklevel=stacklevel)
    except DeprecationWarning:
        pass


def renamed_method(old: str, method: Method) -> Method:
    """The method under its old name: it warns, and calls what the object's class has under the new one."""
    new = method.__name__

    @functools.wraps(method)
    def call_new_method(self: object, /, *args: object, **kwargs: object) -> object:
        warn_renamed(type(self).__name__, old, new)
        return _find_implementation(type(self), old, new)(self, *args, **kwargs)

    call_new_method.__name__ = old
    call_new_method.__isabstractmethod__ = False  # type: ignore[attr-defined]
    return cast("Method", call_new_method)


def adopt_old_names(cls: type, renames: Mapping[str, str]) -> None:
    """Have what a class defines under old names serve the new ones too. Call it from ``__init_subclass__``."""
    for old, new in renames.items():
        if old in vars(cls) and new not in vars(cls):
            warn_renamed(cls.__name__, old, new, stacklevel=4)
            setattr(cls, new, vars(cls)[old])


def _find_implementation(cls: type, old: str, new: str) -> Callable[..., object]:
    """The first method of the new name that is not itself an override of the old one, so that ``super()`` ends."""
    for base in cls.__mro__:
        found = vars(base).get(new)
        if found is not None and found is not vars(base).get(old):
            return cast("Callable[..., object]", found)
    raise AttributeError(new)
