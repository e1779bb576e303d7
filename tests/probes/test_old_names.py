"""Probes of other packages that override or call what had another name before."""

from typing import Any

import pytest

from tdbg.core.events import Observation
from tdbg.probes import Probe


def test_old_names_of_a_probe_work_on(start_watch: Any) -> None:
    with pytest.warns(DeprecationWarning) as caught:

        class Old(Probe):
            """It has everything by its old name."""

            name = "old"
            rests = False
            ignores = frozenset({"call_ended"})

            def may(self, kind: str = "") -> bool:
                return kind == "mine" and not super().may(kind)

            def see(self, text: str, *args: Any, **values: Any) -> None:
                super().see(f"old: {text}", *args, **values)

    assert {str(one.message).partition(" is")[0] for one in caught} == {
        f"Old.{n}" for n in ("rests", "ignores", "may", "see")
    }
    assert not Old.pause_while_profiling and Old.muted == {"call_ended"}
    watched = start_watch()
    probe = Old(watched.monitor)
    probe.on = False
    assert probe.should_sample("mine") and not probe.should_sample()
    watched.monitor.become_rank_now()
    probe.observe("seen", "PART", step=3)
    assert [event.text for event in watched.events if isinstance(event, Observation)] == ["old: seen"]
    with pytest.warns(DeprecationWarning, match=r"Old\.abstain is now Old\.unavailable"):
        probe.abstain("no reason")


def test_new_names_are_there_under_the_old_ones_too() -> None:
    class New(Probe):
        """It has the new names."""

        name = "new"
        pause_while_profiling = False

    assert New.rests is False and Probe.rests is True
