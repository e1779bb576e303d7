"""`tdbg runs upload`: a run on a store."""

from tdbg.core.command_spec import Args, Argument, Command

HELP = """Copy a run that is over to a store that a URL names.

        tdbg runs upload LAST s3://bucket/runs/train
        tdbg runs upload train

    `tdbg run --run-dir URL` copies a run while it goes on. This command completes such a copy after `kill -9`, or where
    the store could not be reached; it needs no URL then. It takes any other run as well. Parts of logs and captured
    pages that are there already are not copied again. Every command reads the URL as it reads a path.
    """
ARGUMENT = Argument("RUN|URL", "A run; the newest one if left out. Then a URL, unless the run was begun with one.")


def upload_run(args: Args) -> int:
    """Copy what is not there."""
    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_messages
    from tdbg.core.redaction import redact_text
    from tdbg.core.rundir import RunDir, find_live_owner
    from tdbg.core.tables import format_count, format_short, format_size, safe
    from tdbg.core.urls import check_url, is_url
    from tdbg.launch.live import has_ended
    from tdbg.launch.run_uploading import complete_upload

    *names, url = args.paths if args.paths and is_url(args.paths[-1]) else [*args.paths, ""]
    example = "name one run and one URL: train s3://bucket/runs/train"
    if len(names) == 2 and not is_url(names[0]):
        raise TdbgError(f"{format_short(names[1], 1000)} is no URL", example)
    if len(names) > 1:
        raise TdbgError("too many words", example)
    if url:
        check_url(url)
    run = RunDir.open(names[0] if names else None)
    if not has_ended(run.read_info()) or any(find_live_owner(process.path) for process in run.list_processes()):
        raise TdbgError(f"{run.path} may still be running", "run this command when it is over, on the host it ran on")
    url, upload = complete_upload(run, url)
    copied = f"copied {format_count(upload.files, 'file')}, {format_size(upload.nbytes)}"
    print_messages(safe(f"{copied}; the run is on {redact_text(url)}"))
    return 0


COMMAND = Command(upload_run, Args, HELP, {}, ARGUMENT)
