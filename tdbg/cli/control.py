"""`tdbg control`: another level or other flags for a run that goes on."""

from typing import TYPE_CHECKING

from tdbg.core.command_spec import JSON, RUN, Args, Command, Option, Options
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_json, print_lines, print_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.core.config import Settings
    from tdbg.core.control import Request
    from tdbg.launch.ask import Answer


HELP = """Change level and flags of a live run, on all ranks at one step.

        tdbg control --level advanced --for 50
        tdbg control train --flag MEMORY --no-flag GRADIENTS
        tdbg control train --level off --at-step 2000
        tdbg control train --profile 3

    The request is written into the run directory, where each rank looks twice a second; no signal, no port. It
    names a step that all ranks can still reach, estimated from their position and speed. A rank that is past it
    switches at once and is named. A flag wakes its probe; the program's own configuration stays as it was read.

    Exit code: 1 if a rank has not answered within the time.
    """
OPTIONS: Options = {
    "level": Option(("--level", "-l"), "LEVEL", "off, basic, advanced or extreme: how much is recorded from then on."),
    "flag": Option(("--flag", "-f"), "FLAG", "Switch a debug flag on; repeatable."),
    "no_flag": Option(("--no-flag",), "FLAG", "Switch a debug flag off; repeatable."),
    "for_steps": Option(("--for",), "N", "Go back to what was before after N steps.", value=int),
    "at_step": Option(("--at-step",), "N", "The first step the change holds for.", value=int),
    "profile": Option(("--profile",), "N", "Record N steps with torch.profiler, after a warm-up.", value=int),
    "clear_history": Option(("--clear-history",), "", "Clear the last steps that each rank keeps for reports."),
    "timeout": Option(
        ("--timeout",),
        "SECONDS",
        "How long to wait for the ranks; 0: not at all.",
        value=float,
        old_names=("--wait",),
    ),
    "json": JSON,
}


class ControlArgs(Args):
    """What `control` can be given."""

    run: str | None = None
    level: str | None = None
    flag: "Sequence[str]" = ()
    no_flag: "Sequence[str]" = ()
    for_steps: int | None = None
    at_step: int | None = None
    profile: int | None = None
    clear_history: bool = False
    timeout: float | None = None
    json: bool = False


def control_run(args: ControlArgs) -> int:
    """Ask the ranks; 1 if one of them has not answered within the time."""
    from tdbg.core.rundir import RunDir
    from tdbg.launch.ask import check_changeable, send_request
    from tdbg.launch.live import read_snapshot

    found = RunDir.open(args.run, writes=True)
    snapshot = read_snapshot(found)
    check_changeable(snapshot)
    request = build_request(snapshot.settings, args)
    if args.timeout is not None and not args.timeout >= 0:
        raise TdbgError(f"--timeout cannot be {args.timeout:g} seconds", "write 0 or more")
    answer = send_request(found, request, args.timeout)
    print_json("control", {"run": str(found.path), **answer.as_dict()}) if args.json else print_answer(answer)
    return 1 if answer.waited and answer.missing else 0


def build_request(settings: "Settings", args: ControlArgs) -> "Request":
    """What was typed as a request; TdbgError for what is wrong with it."""
    from tdbg.core.config import check_setting, read_flags
    from tdbg.core.control import Request

    known = tuple(settings.flags)  # the program's own among them
    switched = {**read_flags(args.flag, known), **read_flags([f"{name}=false" for name in args.no_flag], known)}
    wanted = str(check_setting("level", args.level)) if args.level is not None else ""
    for name, value in (("--for", args.for_steps), ("--at-step", args.at_step)):
        if value is not None and value < 1:
            raise TdbgError(f"{name} cannot be {value}", "write 1 or more")
    if args.for_steps and not (wanted or switched):
        raise TdbgError("--for needs a change to limit to that many steps", "add --level, --flag or --no-flag")
    if not (wanted or switched or args.clear_history or args.profile is not None):
        raise TdbgError("nothing to change was named", "add --level, --flag, --no-flag, --profile or --clear-history")
    steps = check_setting("profile_active", args.profile) if args.profile is not None else 0
    _mention_flags_without_probe(switched)
    return Request(
        number=0,
        at_step=args.at_step or 0,
        level=wanted,
        flags=switched,
        for_steps=args.for_steps or 0,
        clear_history=args.clear_history,
        profile_for=steps,
    )


def _mention_flags_without_probe(flags: dict[str, bool | str]) -> None:
    from tdbg.core.flags import FLAGS

    woken = {flag.name for flag in FLAGS if flag.works_alone or flag.probe}
    deaf = [name for name in flags if name not in woken]
    if deaf:
        print_messages(f"{', '.join(deaf)}: no probe of tdbg uses it; only a program that calls tdbg.flag() sees it")


def print_answer(answer: "Answer") -> None:
    """What came of it, for people."""
    from tdbg.core.tables import format_count
    from tdbg.rules.text import format_ranks

    request = answer.request
    if not answer.asked:
        print_lines(["request sent: no rank has taken a step yet; each rank applies it after its first step"])
    elif not answer.waited:
        eta = f", in about {answer.likely_s:.0f} s" if answer.likely_s else ""
        print_lines(
            [
                f"asked {format_count(len(answer.asked), 'rank')} to {_describe_request(request)} from step {request.at_step}{eta}"
            ]
        )
    steps: dict[int, list[int]] = {}
    for rank, switch in sorted(answer.switched.items()):
        steps.setdefault(switch.step + 1, []).append(rank)
    for step, ranks in sorted(steps.items()):
        late = f", late: step {request.at_step} had passed" if ranks[0] in answer.late else ""
        who = format_count(len(ranks), "rank") if len(steps) == 1 else format_ranks(ranks)
        print_lines([f"{who} switched at step {step}{late} ({_describe_request(request)})"])
    if answer.ended:
        print_lines([f"{format_ranks(answer.ended)} ended before the change"])
    if answer.waited:
        for missing in answer.missing:
            print_lines([f"rank {missing.rank} has not answered; it was last seen at step {missing.step}"])


def _describe_request(request: "Request") -> str:
    """``level advanced, flag MEMORY on, for 30 steps``."""
    from tdbg.core.tables import format_count

    words = [f"level {request.level}"] if request.level else []
    words += [
        f"flag {name} {'off' if value is False else 'on' if value is True else value}"
        for name, value in request.flags.items()
    ]
    words += [f"{format_count(request.profile_for, 'step')} profiled"] if request.profile_for else []
    words += ["history cleared"] if request.clear_history else []
    return ", ".join(words) + (f", for {format_count(request.for_steps, 'step')}" if request.for_steps else "")


COMMAND = Command(control_run, ControlArgs, HELP, OPTIONS, RUN)
