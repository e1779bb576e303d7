"""The findings on a run's metrics, joined to its verdict: rules of two domains that do not know each other."""

from tdbg.core.events import Finding
from tdbg.core.guard import guarded
from tdbg.core.rundir import RunDir
from tdbg.rules._order import order_findings
from tdbg.rules.verdict import Verdict

FILE_BYTES = 200_000_000  # more rows are not read for a verdict: `tdbg metrics sanity` does

ORIGIN = "TD-N"  # where a NaN came from: then it is no news that
NOT_FINITE = "TD-K011"  # a metric is not finite


def read_verdict(run: RunDir) -> Verdict:
    """The verdict that is kept with a run, or one computed now, with what its metrics say."""
    from tdbg.rules.kept_verdict import load_verdict
    from tdbg.rules.rule_engine import judge_run

    return load_verdict(run) or add_metrics_findings(judge_run(run), run)


def add_metrics_findings(verdict: Verdict, run: RunDir) -> Verdict:
    """Add what the rules of `tdbg metrics sanity` say. Nothing is raised; cost: about 3 us a row."""
    from tdbg.core.errors import TdbgError

    def record_trouble(error: BaseException) -> None:
        cannot_read = isinstance(error, TdbgError | OSError)
        verdict.trouble.append(
            f"the metrics cannot be read: {error}"
            if cannot_read
            else f"checking the metrics failed: {type(error).__name__}: {error}"
        )

    evaluated = None
    with guarded("the verdict must not hang on its newest part", record_trouble):
        evaluated = _evaluate_run_metrics(verdict, run)
    if evaluated is None:
        return verdict
    found, trouble = evaluated
    verdict.trouble += trouble
    if any(one.code.startswith(ORIGIN) for one in verdict.findings):
        found = [one for one in found if one.code != NOT_FINITE]
    if found:
        from tdbg.metrics.sanity import RULES

        verdict.findings, verdict.causes = order_findings([*verdict.findings, *found], RULES)
    return verdict


def _evaluate_run_metrics(verdict: Verdict, run: RunDir) -> tuple[list[Finding], list[str]] | None:
    """The findings on the metrics, and the rules that failed; None where there is nothing to evaluate."""
    if not any(run.path.glob("rank*/**/metrics.jsonl")):
        return None
    from tdbg.metrics.rows.row_files import find_rows_files
    from tdbg.metrics.rows.run_summary import summarize_run
    from tdbg.metrics.sanity import evaluate_metrics

    place = find_rows_files(str(run.path))
    size = sum(file.path.stat().st_size for file in place.files)
    if size > FILE_BYTES:
        verdict.notes.append(f"{size / 1e6:,.0f} MB of metrics were not checked: run `tdbg metrics sanity {run.place}`")
        return None
    return evaluate_metrics(summarize_run(place)[0])
