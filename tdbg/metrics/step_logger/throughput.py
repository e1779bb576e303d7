"""The throughput of a run: samples per second, and the time left."""

import time

KEEP = 0.9  # weight of what was before, in the mean time of a step


class ThroughputMeter:
    """Fed once a step. Rates are over the time since the same asker asked last."""

    def __init__(self, total_steps: int | None = None) -> None:
        self.total_steps = total_steps
        self._samples = 0
        self._begun = time.monotonic()
        self._asked: dict[str, tuple[float, int]] = {}  # by asker: when, and samples up to then
        self._step: int | None = None
        self._at = 0.0
        self._step_sec: float | None = None

    def record_step(self, step: int, samples: int) -> None:
        """A step is done."""
        now = time.monotonic()
        self._samples += samples
        if self._step is not None and step > self._step:
            took = (now - self._at) / (step - self._step)
            self._step_sec = took if self._step_sec is None else KEEP * self._step_sec + (1 - KEEP) * took
        self._step, self._at = step, now

    def compute_rates(self, asker: str) -> dict[str, float]:
        """``samples_per_sec`` since the asker's last call, and ``eta_sec`` if the length of the run is known."""
        now = time.monotonic()
        since, samples = self._asked.get(asker, (self._begun, 0))
        self._asked[asker] = now, self._samples
        found: dict[str, float] = {}
        if self._samples > samples and now > since:
            found["samples_per_sec"] = (self._samples - samples) / (now - since)
        if self.total_steps and self._step is not None and self._step_sec is not None:
            found["eta_sec"] = max(self.total_steps - self._step, 0) * self._step_sec
        return found
