"""Who is answered, and who is refused before anything of a run is looked at."""

import pytest

from .conftest import Client

REPORT = "/api/v1/runs/single/report"
PROTECTED = ["/api/v1/runs", REPORT, "/api/v1/openapi.json", "/api/v1/nothing", "/debug/summary"]


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": "Bearer x"},
        {"authorization": "Basic x"},
        {"cookie": "tdbg-session=x"},
    ],
)
def test_without_a_session_nothing_is_said(client: Client, path: str, headers: dict[str, str]) -> None:
    answer = client.http.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json() == {
        "error": "the session is missing or not known",
        "try_next": "open the URL with #token=... that `tdbg view` or `tdbg run --serve` printed",
    }


def test_the_token_itself_is_no_session_and_in_an_address_it_is_nothing(client: Client) -> None:
    token = client.sessions.token
    assert client.http.get(REPORT, headers={"authorization": f"Bearer {token}"}).status_code == 401
    assert client.http.get(f"{REPORT}?token={token}").status_code == 401


def test_the_token_is_given_for_a_session(client: Client) -> None:
    answer = client.http.post("/api/v1/session", json={"token": client.sessions.token})
    session = answer.json()["session"]
    assert client.http.get(REPORT, headers={"authorization": f"Bearer {session}"}).status_code == 200


@pytest.mark.parametrize("token", ["", "x", "x" * 10_000, "\u00fc"])
def test_a_wrong_token_is_refused(client: Client, token: str) -> None:
    assert client.http.post("/api/v1/session", json={"token": token}).status_code == 401


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b"\xff", b'{"token": "' + b"x" * 100_000 + b'"}'])
def test_what_is_no_token_is_refused(client: Client, body: bytes) -> None:
    assert client.http.post("/api/v1/session", content=body).status_code == (413 if len(body) > 70_000 else 400)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "0.0.0.0:8000", "[::2]:80"]
)
def test_another_name_does_not_lead_here(client: Client, host: str) -> None:
    """A page whose name is made to point to 127.0.0.1 has that name in `Host`."""
    for path in ("/", "/assets/app.js", REPORT):
        assert client.get(path, headers={**client.headers, "host": host}).status_code == 403, path


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST:8000"])
def test_names_of_this_machine_do_with_any_port(client: Client, host: str) -> None:
    assert client.get(REPORT, headers={**client.headers, "host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:8001"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_pages_are_refused(client: Client, headers: dict[str, str]) -> None:
    assert client.get(REPORT, headers={**client.headers, **headers}).status_code == 403
    token = {"token": client.sessions.token}
    assert client.http.post("/api/v1/session", json=token, headers=headers).status_code == 403


def test_a_link_that_a_person_follows_from_elsewhere_opens_the_page_and_nothing_else(client: Client) -> None:
    opened = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/runs", headers=opened).status_code == 200
    assert client.get("/runs", headers={**opened, "origin": "null"}).status_code == 403
    assert client.get("/runs", headers={**opened, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get(REPORT, headers={**client.headers, **opened}).status_code == 403
    assert client.http.post("/api/v1/session", json={}, headers=opened).status_code == 403


def test_every_answer_has_the_headers_that_keep_other_pages_out(client: Client) -> None:
    for path in ("/", "/runs", "/assets/app.js", "/assets/none", "/nothing", REPORT, "/api/v1/runs"):
        for headers in (client.headers, {}):
            answer = client.get(path, headers=headers)
            policy = answer.headers["content-security-policy"]
            assert "script-src 'self';" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in answer.headers and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fetc", "single%2f..", "%00", "single%00", "none", "*", "~"])
def test_no_name_leads_out_of_the_folder(client: Client, name: str) -> None:
    answer = client.get(f"/api/v1/runs/{name}/report")
    assert answer.status_code == 404 and "root:" not in answer.text


@pytest.mark.parametrize(
    "name", ["..%2f..%2fserver.py", "%2e%2e%2fserver.py", "../server.py", "none.js", "__init__.py"]
)
def test_assets_are_the_files_of_the_pages_alone(client: Client, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


def test_a_link_in_the_folder_is_no_run(runs_folder, tmp_path) -> None:
    (tmp_path / "linked").symlink_to(runs_folder / "single")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run.json").symlink_to(runs_folder / "single" / "run.json")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "run.json").write_text("{}")
    other = Client(tmp_path)
    assert [run["name"] for run in other.ask("/runs")["runs"]] == ["real"]
    assert other.get("/api/v1/runs/linked/report").status_code == 404


def test_nothing_acts_without_control(client: Client) -> None:
    described = client.ask("/openapi.json")
    acting = {path for path, methods in described["paths"].items() if "post" in methods}
    assert acting == {"/api/v1/session"}
    for path in ("/debug/level/basic", "/debug/clear", "/api/v1/runs/single/flags"):
        assert client.http.post(path, headers=client.headers, json={}).status_code in (404, 405), path
