"""`tdbg inspect-pages verify` and `recover`."""

from pathlib import Path

import pytest

from tdbg.pages.format.page_writer import PageWriter
from tests.pages.samples import Commands, make_item, write_run


@pytest.fixture
def page_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(write_run(tmp_path / "run"), capsys)


def test_whole(page_commands: Commands) -> None:
    told = page_commands("verify")
    assert told.code == 0 and told == [] and "is whole" in told.said
    assert page_commands("verify", "--json").json_data == {
        "path": str(page_commands.folder),
        "whole": True,
        "problems": [],
    }
    again = page_commands("recover")
    assert again.code == 0 and again == [] and again.said == "tdbg: there was nothing to do\n"


def test_damage_is_a_line_each_and_exit_1(page_commands: Commands) -> None:
    pages = page_commands.folder / "rank0001" / "pages"
    (pages / "r0001-000000.safetensors").unlink()
    (page_commands.folder / "rank0000" / "pages" / "MANIFEST.json").write_text("{")
    told = page_commands("verify")
    assert told.code == 1 and len(told) == 2 and "is whole" not in told.said
    assert any("page 0 of rank 1 is missing" in line for line in told)
    data = page_commands("verify", "--json").json_data
    assert data["whole"] is False and all(problem["grave"] for problem in data["problems"])


def test_data_that_were_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PageWriter(tmp_path / "p", checksums=True) as writer:
        writer.add("k", [make_item("t", [1.0, 2.0])])
    page = tmp_path / "p" / "r0000-000000.safetensors"
    data = bytearray(page.read_bytes())
    data[-64] ^= 1
    page.write_bytes(data)
    told = Commands(tmp_path / "p", capsys)("verify")
    assert told.code == 1 and "checksum" in told[0]


def test_a_killed_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PageWriter(tmp_path / "p")
    for key in range(3):
        writer.add(key, [make_item("t", [1.0, 2.0])])
    writer.flush()
    ask = Commands(tmp_path / "p", capsys)
    told = ask("verify")
    assert told.code == 0 and told[0].startswith("note: ") and "is being filled" in told[0]
    alive = ask("recover")
    assert alive.code == 0 and "left alone" in alive[0]
    done = ask("recover", "--force")
    assert done.code == 0 and done[0].startswith("sealed ") and "3 datapoints" in done[0]
    assert ask("verify").code == 0 and list(tmp_path.glob("p/*.part")) == []
    assert [row["key"] for row in ask("ls", "--datapoints").table_rows] == ["0", "1", "2"]


def test_a_lost_journal(page_commands: Commands) -> None:
    for path in (page_commands.folder / "rank0000" / "pages").glob("*.journal"):
        path.unlink()
    found = page_commands("recover", "--force", "--json")
    assert (
        found.code == 0
        and len(found.json_data["done"]) == 1
        and "4 datapoints of 1 sealed page" in found.json_data["done"][0]
    )
    assert page_commands("recover").said == "tdbg: there was nothing to do\n"
    assert len(page_commands("ls", "--datapoints").table_rows) == 8
