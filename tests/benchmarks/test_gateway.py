"""Calculations of the whole-server benchmarks; their measurements run in `tests/e2e/test_benchmark_servers.py`."""

import json
import subprocess
import sys

import pytest

from benchmarks.gateway import bounds, page, processes, tables
from benchmarks.gateway.measures import MEASURES, percentile
from benchmarks.gateway.order import Figures
from benchmarks.gateway.runner import Finding, Findings
from benchmarks.gateway.scenarios import SCENARIOS, named


def test_percentiles_are_numbers_that_were_measured() -> None:
    numbers = list(range(1, 101))
    assert [percentile(numbers, share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert percentile([], 0.5) == 0


def test_names_are_whole_or_beginnings() -> None:
    assert [each.name for each in named(["paced-20"])] == ["paced-20"]
    assert [each.name for each in named(["resume"])] == ["resume-one", "resume-many", "resume-running"]
    with pytest.raises(ValueError, match="burst-100"):
        named(["nothing"])


def test_scenarios_name_existing_servers_and_bodies() -> None:
    assert {each.measure for each in SCENARIOS} == set(MEASURES)
    assert len({each.name for each in SCENARIOS}) == len(SCENARIOS)
    assert {each.scenario for each in bounds.BOUNDS} <= {each.name for each in SCENARIOS}


def _found(**figures: tuple[float, ...]) -> tuple[Figures, ...]:
    return tuple(
        dict(zip(figures, each, strict=True), lost=0) for each in zip(*figures.values(), strict=True)
    )


def _findings() -> Findings:
    return Findings(
        [
            Finding("burst-500", "tailrace", _found(cpu_us=(8.0, 10.0, 9.0))),
            Finding("burst-16000", "tailrace", _found(cpu_us=(9.0,))),
            Finding(
                "burst-4000",
                "tailrace",
                _found(cpu_us=(9.0, 7.0, 8.0), wall_us=(1, 1, 1), chunks_per_event=(1, 1, 1)),
            ),
            Finding("burst-4000", "a2a-sdk", _found(cpu_us=(560.0,), wall_us=(1,), chunks_per_event=(1,))),
            Finding("burst-4000", "a2a-sdk-sqlite", (), "it did not start"),
            Finding("paced-200", "tailrace", _found(first_p50_ms=(3.5,))),
            Finding("paced-200", "direct", _found(first_p50_ms=(1.0,))),
        ]
    )


def test_bounds_are_of_medians() -> None:
    found = {verdict.what: verdict for verdict in bounds.judge(replace_missing(_findings()))}
    assert found["burst, 4,000 tokens: µs of CPU a chunk"].figure == 8
    assert found["burst, 4,000 tokens: µs of CPU a chunk"].holds
    ratio = found["… a2a-sdk in memory, times ours"]
    assert (ratio.figure, ratio.holds) == (70, False)
    assert found["burst: a token at 16,000 / at 500"].figure == 1
    first = found["… added time to first token p50, ms"]
    assert (first.figure, first.holds) == (2.5, False)
    assert "… a2a-sdk on SQLite, times ours" not in found


def replace_missing(findings: Findings) -> Findings:
    """Add the figures of paced runs that bounds refer to."""
    findings.all = [
        Finding(
            each.scenario,
            each.server,
            tuple(
                {"cpu_us": 1.0, "latency_p50_ms": 0.0, "latency_p99_ms": 0.0, "first_p99_ms": 0.0, **repeat}
                for repeat in each.repeats
            ),
            each.failure,
        )
        for each in findings.all
    ]
    return findings


def test_lost_streams_and_failures_break_a_bound() -> None:
    lost = Finding("turns-16", "tailrace", ({"turns_s": 1.0, "lost": 2},))
    failed = Finding("turns-16", "tailrace-memory", (), "refused")
    verdicts = bounds.judge(Findings([lost, failed]))
    assert [verdict.holds for verdict in verdicts] == [False, False]


def test_the_table_has_ratios_and_failures() -> None:
    table = tables.table(named(["burst-4000"])[0], _findings())
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert rows[0][1:3] == ("8.00 (7.00 … 9.00)", "1.00x")
    assert rows[1][2] == "70.0x"
    assert rows[2][1] == "fails"
    assert rows[2][-1] == "it did not start"


def test_cpu_time_is_of_children_and_ended_threads_too() -> None:
    program = (
        "import threading, time; t = threading.Thread(target=sum, args=(range(10**7),)); t.start(); t.join(); "
        "print(time.process_time_ns(), flush=True); input()"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        reported = int(process.stdout.readline())  # of the child alone, including its thread
        assert len(processes.tree(process.pid)) == 2
        assert processes.cpu_ns(process.pid) > reported
        memory = processes.memory(process.pid)
        assert memory["rss"] > memory["pss"] > 0
        process.communicate(b"\n")


def test_a_run_is_the_same_after_it_was_written() -> None:
    findings = replace_missing(_findings())
    findings.load = 0.25
    assert Findings.from_dict(json.loads(json.dumps(findings.to_dict()))) == findings


def test_the_summary_has_a_column_for_each_server_with_its_ratio_to_ours() -> None:
    summary = tables.summarise(replace_missing(_findings()))
    assert summary.heads == ["", "tailrace, SQLite", "a2a-sdk, memory", "a2a-sdk, SQLite", "no server"]
    rows = {(row[0], row[1]): row[2:] for row in summary.rows}
    burst = named(["burst-4000"])[0]
    assert rows[burst.title, "8.00 µs of CPU a chunk"] == ["70.0x", "", ""]
    assert rows["", "3.50 ms to first text, p50"] == ["", "", "0.29x"]


def test_figures_are_put_into_the_page() -> None:
    table = tables.markdown(replace_missing(_findings()))
    once = page.put(page.PAGE.read_text(encoding="utf-8"), table)
    assert table in once
    assert page.put(once, table) == once
    with pytest.raises(ValueError, match="no place"):
        page.put("nothing", table)
