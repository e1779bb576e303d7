"""A page in headless Chromium, driven over a pipe by the DevTools protocol: what it says, loads and draws.

Standard library alone: no driver, no library, no port.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One Chromium without a window and without a network; a context manager."""

    def __init__(self, width=1400, height=1000):
        self.size = (width, height)
        self.errors = []  # console errors, exceptions, what the policy of the page refused
        self.requests = []  # URLs that were asked for
        self._number = 0
        self._data = b""

    def __enter__(self):
        there, self._to = os.pipe()
        self._from, back = os.pipe()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [
            *(
                "bash",
                "-c",
                f'exec 3<&{there} 4>&{back}; exec "$@"',
                "chromium",
                CHROMIUM,
                "--headless",
                "--no-sandbox",
            ),
            *("--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--no-default-browser-check"),
            *(f"--user-data-dir={self._profile.name}", f"--window-size={self.size[0]},{self.size[1]}", "about:blank"),
        ]
        self.process = subprocess.Popen(
            command, pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(there)
        os.close(back)
        target = self.send_command("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self.send_command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send_command(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open_file(self, path, ready, limit=60):
        """Load a file and wait until an expression is true in it."""
        self.errors.clear()
        self.requests.clear()
        self.send_command("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait_until(ready, limit)

    def wait_until(self, expression, limit=30):
        end = time.monotonic() + limit
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {expression}; {self.errors}")
            time.sleep(0.05)

    def evaluate(self, expression):
        """What an expression is worth in the page."""
        found = self.send_command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def hover_over(self, selector, place=0):
        """Move the mouse onto an element; where it is then."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{place}]"
        self.evaluate(f"{found}.scrollIntoView()")
        box = f"(box => [box.left + Math.min(box.width / 2, 20), box.top + box.height / 2])({found}.getBoundingClientRect())"
        x, y = self.evaluate(box)
        self.send_command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector, place=0):
        """Move the mouse onto an element, and press."""
        x, y = self.hover_over(selector, place)
        for kind in ("mousePressed", "mouseReleased"):
            self.send_command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def save_picture(self, path):
        """A PNG of all of the page."""
        size = self.send_command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.send_command("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def send_command(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self._read_message(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._record_event(answer.get("method"), answer.get("params", {}))

    def _read_message(self, end):
        poll = select.poll()  # select itself refuses descriptors above 1,023, which a long run of tests may have
        poll.register(self._from, select.POLLIN)
        while b"\0" not in self._data:
            ready = poll.poll(max(end - time.monotonic(), 0) * 1000)
            more = os.read(self._from, 1 << 20) if ready else b""
            if not more:
                raise AssertionError("Chromium does not answer")
            self._data += more
        line, _, self._data = self._data.partition(b"\0")
        return json.loads(line)

    def _record_event(self, method, told):
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
