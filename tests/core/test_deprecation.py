"""Old names of methods and attributes: they work on, in whatever way another package uses them."""

import warnings
from abc import ABC, abstractmethod

import pytest

from tdbg.core.deprecation import adopt_old_names, renamed_method


class Base(ABC):
    """Its method `look` became `evaluate`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        adopt_old_names(cls, {"look": "evaluate"})

    @abstractmethod
    def evaluate(self, value: int) -> int:
        """Evaluate it."""
        return value

    look = renamed_method("look", evaluate)


class New(Base):
    def evaluate(self, value: int) -> int:
        return value + 1


def make_old() -> type[Base]:
    class Old(Base):
        def look(self, value: int) -> int:
            return super().look(value) + 10

    return Old


def test_a_call_by_the_old_name_warns_and_reaches_the_new_method() -> None:
    with pytest.warns(DeprecationWarning, match=r"New\.look is now New\.evaluate"):
        assert New().look(1) == 2


def test_an_override_of_the_old_name_is_called_by_the_new_one_and_its_super_ends() -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.look is now Old\.evaluate"):
        old = make_old()
    assert old().evaluate(1) == 11


def test_new_names_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert New().evaluate(1) == 2


def test_where_warnings_are_errors_old_names_work_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_old()().evaluate(1) == 11 and New().look(1) == 2


def test_half_a_class_is_refused_under_either_name() -> None:
    half = type("Half", (Base,), {})
    with pytest.raises(TypeError, match=r"abstract.*evaluate"):
        half()
