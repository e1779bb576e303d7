"""`tdbg run --debugger`: debuggers by name, on the datapoints that are captured."""

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tdbg.core.capture import DATAPOINT_DEBUGGERS, LAYER_DEBUGGERS, DebuggerSpec
from tdbg.core.errors import TdbgError
from tdbg.core.guard import describe_error, guarded
from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import BaseDebugger, ForwardDebugger
from tdbg.debuggers.datapoint_parts import name_arguments
from tdbg.debuggers.guarded_pass import explain_obstacle, without_trace
from tdbg.debuggers.hooks import Hooks
from tdbg.debuggers.layers import layers_of
from tdbg.pages.format.nested_outputs import build_path_steps
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.own_hooks import post_hooks_of
from tdbg.runtime.rerun_alone import CollectiveMet

if TYPE_CHECKING:
    from tdbg.debuggers.tap import Copied
    from tdbg.runtime.rerun import Call

MOST = 64  # debuggers of one root
PENDING = 8  # passes whose gradients are waited for
LAYER_ARGUMENTS = ("layer_name", "target_layer", "layer")
BUILT_IN = (*LAYER_DEBUGGERS, *DATAPOINT_DEBUGGERS)

ReportSkip = Callable[[str, str], None]
FindLayers = Callable[[nn.Module, DebuggerSpec], Mapping[str, nn.Module]]


def add_third_party(points: Mapping[str, str]) -> None:
    """Let the debuggers of other packages be found by name. What cannot be imported is told where it is named."""
    DEBUGGERS.load()
    DEBUGGERS.add_entry_points(points)


@dataclass
class RunningDebugger:
    """One debugger on one root. name: of its entry in the pages. is_on: False once it has failed."""

    name: str
    debugger: BaseDebugger
    is_on: bool = True


@dataclass
class _Pending:
    """A pass of which a debugger waits for the gradients. calls: what the layer gave in it, once the pass is over."""

    running: RunningDebugger
    module: "weakref.ref[nn.Module]"
    copied: "Copied"
    calls: tuple[list[Any], int] | None = None

    @property
    def has_arrived(self) -> bool:
        debugger = self.running.debugger
        if self.calls is None or not isinstance(debugger, ForwardDebugger):
            return bool(getattr(debugger, "has_arrived", True))
        now = debugger.take_calls()  # of a pass that runs
        debugger.give_calls(self.calls)
        try:
            return bool(getattr(debugger, "has_arrived", True))
        finally:
            debugger.give_calls(now)

    @property
    def is_of_failed_pass(self) -> bool:
        """True, when another pass begins, of one that did not come to its end."""
        return self.calls is None and isinstance(self.running.debugger, ForwardDebugger)


class RunDebuggers:
    """All that `--debugger` names, made once a root.

    A debugger that fails, or that would run the model again where that is not safe, is switched off, and that is said once.
    find_layers: the layers of a root that a spec means, by path. report_skip: told the name of what is skipped, and why.
    """

    def __init__(self, texts: Sequence[str], find_layers: FindLayers, report_skip: ReportSkip) -> None:
        self._specs = [DebuggerSpec.parse(text) for text in texts]
        self._find_layers, self._report_skip = find_layers, report_skip
        self._known: IdentityKeys[nn.Module, list[RunningDebugger]] = IdentityKeys()
        self._hooks = Hooks()
        self._pending: list[_Pending] = []

    def __bool__(self) -> bool:
        return bool(self._specs)

    # before, during and after a pass

    def attach(self, module: nn.Module) -> None:
        """Hook what is to be looked at, until `detach`."""
        self._pending = [pending for pending in self._pending if not pending.is_of_failed_pass]
        for running in self._list_running(module):
            with self._guard(running):
                if isinstance(running.debugger, ForwardDebugger):
                    running.debugger.take_calls()  # of a pass that raised
                self._hooks.add(running.debugger.attach(module))
                _put_first(module, running.debugger)

    def detach(self) -> None:
        """Take the hooks of the pass away."""
        hooks, self._hooks = self._hooks, Hooks()
        hooks.remove()

    def collect_outputs(
        self, module: nn.Module, call: "Call", parts: Mapping[str, object], output: object
    ) -> dict[str, object]:
        """What each debugger gives for a call, without those that wait for gradients. parts: of the batch."""
        datapoint = {**parts, "inputs": _list_inputs(module, call), "outputs": output}
        found: dict[str, object] = {}
        for running in self._list_running(module):
            if not running.debugger.after_backward:
                with self._guard(running):
                    found[running.name] = self._ask_debugger(running, module, call, datapoint)
            elif isinstance(running.debugger, ForwardDebugger):
                self._put_aside(running, running.debugger.take_calls())
        return {name: value for name, value in found.items() if not _is_nothing(value)}

    def _put_aside(self, running: RunningDebugger, calls: tuple[list[Any], int]) -> None:
        """A pass is over: what its layers gave waits for the gradients of this pass, whichever comes meanwhile."""
        for pending in self._pending:
            if pending.running is running and pending.calls is None:
                pending.calls = calls

    def _ask_debugger(
        self, running: RunningDebugger, module: nn.Module, call: "Call", datapoint: Mapping[str, object]
    ) -> object:
        if not running.debugger.runs_again:
            return _resolve_output(running.debugger, module, datapoint)
        obstacle = explain_obstacle(module, call)
        if obstacle:
            self._switch_off(running, obstacle)
            return {}
        with without_trace(module):
            return _resolve_output(running.debugger, module, datapoint)

    # gradients, which come later

    def await_gradients(self, module: nn.Module, copied: "Copied") -> list[str]:
        """The entries of a pass that come after backward; `settle_gradients` brings them."""
        waiting = [running for running in self._list_running(module) if running.debugger.after_backward]
        self._pending += [_Pending(running, weakref.ref(module), copied) for running in waiting]
        self._pending = self._pending[-PENDING * len(self._specs) :]
        return [running.name for running in waiting]

    def settle_gradients(self, *, force: bool = False) -> Iterator[tuple["Copied", str, object]]:
        """The passes whose gradients have arrived: what the debuggers give. force: all of them."""
        ready = [pending for pending in self._pending if force or pending.has_arrived]
        self._pending = [pending for pending in self._pending if pending not in ready]
        for pending in ready:
            yield pending.copied, pending.running.name, self._ask_late(pending)

    def _ask_late(self, pending: _Pending) -> object:
        module, value = pending.module(), None
        if module is not None:
            with self._guard(pending.running):
                debugger = pending.running.debugger
                if pending.calls is not None and isinstance(debugger, ForwardDebugger):
                    debugger.give_calls(pending.calls)
                value = _resolve_output(debugger, module, {})
        return value

    # which debuggers

    def _list_running(self, module: nn.Module) -> list[RunningDebugger]:
        known = self._known.get(module)
        if known is None:
            known = self._known[module] = list(self._make_debuggers(module))
            for running in known[MOST:]:
                self._switch_off(running, f"{MOST} debuggers run at most")
        return [running for running in known if running.is_on]

    def _make_debuggers(self, module: nn.Module) -> Iterator[RunningDebugger]:
        for spec in self._specs:
            found: list[RunningDebugger] = []
            with guarded("other packages' code", lambda error, spec=spec: self._explain(str(spec), error)):  # type: ignore[misc]
                found = list(self._make_of_spec(module, spec))
            yield from found

    def _make_of_spec(self, module: nn.Module, spec: DebuggerSpec) -> Iterator[RunningDebugger]:
        kind: Any = DEBUGGERS[spec.name]
        if not _is_of_layer(kind):
            yield RunningDebugger(str(spec), kind(spec.argument) if spec.argument else kind())
            return
        paths = {id(layer): path for path, layer in layers_of(module)}
        for path, layer in self._find_layers(module, spec).items():
            yield RunningDebugger(f"{spec.name}:{path}" if path else spec.name, kind(paths[id(layer)]))

    # failures

    def _guard(self, running: RunningDebugger) -> guarded:
        return guarded("any debugger", lambda error: self._fail(running, error), program_code=True)

    def _fail(self, running: RunningDebugger, error: BaseException) -> None:
        running.is_on = False
        self._explain(running.name, error)

    def _switch_off(self, running: RunningDebugger, why: str) -> None:
        running.is_on = False
        self._report_skip(running.name, why)

    def _explain(self, name: str, error: BaseException) -> None:
        why = str(error) if isinstance(error, TdbgError | CollectiveMet) else describe_error(error)
        self._report_skip(name, why)


def iter_entries(name: str, value: object) -> Iterator[tuple[str, object]]:
    """What a debugger gave, by its path in the pages: ``gradcam:layer4/gradcam_stats/mean``."""
    if not isinstance(value, Mapping) or not value:
        yield name, value
        return
    for step, key in build_path_steps(value).items():
        yield from iter_entries(f"{name}/{step}", value[key])


def _resolve_output(debugger: BaseDebugger, module: nn.Module, datapoint: Mapping[str, object]) -> object:
    """What it gives; why there is nothing, in words."""
    value = debugger(datapoint, module)
    return debugger.missing(module) if value is None else value


def _list_inputs(module: nn.Module, call: "Call") -> object:
    """The arguments as one who runs the model again needs them."""
    found = name_arguments(module, call)
    only = next(iter(found.values())) if len(found) == 1 else None
    return only if isinstance(only, Tensor) else found


def _is_nothing(value: object) -> bool:
    return isinstance(value, Mapping) and not value


def _is_of_layer(kind: Any) -> bool:
    """True for a class that is made for one layer, by its path."""
    if kind.name in BUILT_IN:
        return kind.name in LAYER_DEBUGGERS
    names = list(inspect.signature(kind).parameters)
    return issubclass(kind, ForwardDebugger) or names[:1] in [[name] for name in LAYER_ARGUMENTS]


def _put_first(module: nn.Module, debugger: BaseDebugger) -> None:
    """Have the hooks of a debugger that looks at the root itself run before the one that ends the pass."""
    table = post_hooks_of(module)
    for key in [key for key, hook in table.items() if getattr(hook, "owner", None) is debugger]:
        table.move_to_end(key, last=False)
