"""`tdbg inspect-pages upload`: what was captured, on a store."""

from tdbg.core.command_spec import Args, Argument, Command, Option, Options

HELP = """Copy what was captured to a store that a URL names.

    Copies sealed pages, journals and manifests in their folders, and a dead writer's unsealed page
    too. Pages that are there already are left alone, so that it can be called again, and while the run goes on. Every
    command reads a URL as it reads a path. It needs `pip install 'tdbg[remote]'` and the library of the store, such as s3fs;
    credentials are those of the environment. `tdbg run --capture-upload URL` does the same while the command runs.

    Examples:
        tdbg inspect-pages upload s3://bucket/train
        tdbg inspect-pages upload tdbg_runs/20261121-031500-train s3://bucket/train
    """
ARGUMENT = Argument(
    "PATH|URL",
    "Optional: a run, a rank's folder or a folder of pages; the newest run if left out. Then a URL.",
)
OPTIONS: Options = {"json": Option(("--json",), "", "Print what was copied as one JSON document.")}


class UploadArgs(Args):
    """What `upload` can be asked."""

    json: bool = False


def upload_pages(args: UploadArgs) -> int:
    """Copy what is new."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_json, print_messages
    from tdbg.core.tables import format_count, format_short, format_size
    from tdbg.core.urls import check_url, is_url
    from tdbg.pages.page_upload import Upload, pages_bytes
    from tdbg.pages.progress_bar import Progress
    from tdbg.pages.read.page_folder import find_page_folders
    from tdbg.pages.selection.locations import place_and_word, resolve_place

    example = "tdbg inspect-pages upload tdbg_runs/train s3://bucket/train"
    paths, url = place_and_word(args.paths, "URL", example, either=False)
    check_url(url)
    where = resolve_place(paths)
    if is_url(where) or not Path(where).is_dir():
        raise TdbgError(
            f"{format_short(where, 1000)} is no folder here", "name a run, a rank's folder or a folder of pages"
        )
    if not any(True for _ in find_page_folders(Path(where))):
        raise TdbgError(f"{format_short(where, 1000)} holds no pages", "capture some with `tdbg run --capture`")
    total = sum(pages_bytes(Path(where)))
    with Progress("uploading", total) as progress:
        found = Upload(Path(where), url, progress=progress.advance)
        found.upload_new_files(last=True)
    if args.json:
        print_json("pages-upload", {"path": where, "url": url, "files": found.files, "bytes": found.nbytes})
    print_messages(
        f"copied {format_count(found.files, 'file')}, {format_size(found.nbytes)}"
        if found.files
        else "there was nothing to copy"
    )
    return 0


COMMAND = Command(upload_pages, UploadArgs, HELP, OPTIONS, ARGUMENT)
