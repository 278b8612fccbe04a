"""docs/preflight.md says what the checks do: every check, its limit, its numbers."""

from __future__ import annotations

import re

import pytest

from entrypoint.cluster import refusal, reported_differences
from entrypoint.config import parsers
from entrypoint.config.check_names import CheckName
from entrypoint.job import collective
from entrypoint.machine import infiniband
from entrypoint.machine.limits import sized
from entrypoint.net import dns
from entrypoint.preflight import (
    fabric,
    gpu_burn,
    gpu_driver,
    gpu_health,
    host,
    network,
    ports,
    storage,
)
from entrypoint.preflight.run import CHECKS
from entrypoint.run.run_dir_reads import STORAGE_GRACE_SECONDS
from tests.support.doc_pages import PREFLIGHT, with_models
from trainer.cluster.diagnostics.bisect import SLOW_PAIR

PAGE = PREFLIGHT.read_text()
ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \|" + r" ([^|]+) \|" * 4 + "$", re.MULTILINE)
FOUND = ROW.findall(PAGE)


def plain(text: str) -> str:
    """`text` without line ends and capitals."""
    return " ".join(text.split()).lower()


DETAILS = re.compile(r"^- \*\*`([a-z_.]+)`\*\*(.+?)(?=\n\n|\n- )", re.MULTILINE | re.DOTALL)
"""What the page says of a check below its table."""
ROWS = {
    name: plain(f"{looks_at}; warns {warns}; fails {fails}; {remedy}")
    for name, looks_at, warns, fails, remedy in FOUND
}
for check, detail in DETAILS.findall(PAGE):
    ROWS[check] += plain(detail)
MOST_WORDS = 20  # of a cell
USUAL_SECONDS = 5  # limit of a check that the table of limits does not name
LIMITS = {
    name: float(seconds)
    for seconds, names in re.findall(r"^\| (\d+) s \| (`.+`) \|$", PAGE, re.MULTILINE)
    for name in re.findall(r"`([^`]+)`", names)
}

NUMBERS: dict[CheckName, tuple[str, ...]] = {
    CheckName.HOST_SHM: (
        f"below {sized(host.SMALLEST_SHM)}",
        f"below {sized(host.SMALLEST_SHM_WITH_GPU)}",
        f"below {host.OBJECT_STORE_SHARE:.0%}",
    ),
    CheckName.HOST_NOFILE: (
        f"fails below {host.FEWEST_FILES}",
        f"warns below {host.ENOUGH_FILES}",
        f"nofile={host.ENOUGH_FILES}:{host.ENOUGH_FILES}",
    ),
    CheckName.HOST_NPROC: (
        f"fails below {host.FEWEST_PROCESSES}",
        f"warns below {host.ENOUGH_PROCESSES}",
        f"nproc={host.ENOUGH_PROCESSES}",
    ),
    CheckName.HOST_MEMLOCK: (f"below {sized(host.LEAST_LOCKED)}",),
    CheckName.HOST_MEMORY: (
        f"fails below {sized(host.SMALLEST_MEMORY)}",
        f"warns below {sized(host.ENOUGH_MEMORY)}",
    ),
    CheckName.HOST_REAPER: (f"within {host.REAP_SECONDS:g} s",),
    CheckName.HOST_NAMES: (f"within {dns.ANSWER_SECONDS:g} s",),
    CheckName.HOST_PORTS: (
        f"taken {ports.ENDING_SECONDS:g} s",
        f"fewer than {ports.FEWEST_WORKER_PORTS} free worker ports",
        f"the first {parsers.DAEMON_PORTS} are",
    ),
    CheckName.HOST_RUN_DIR: (
        sized(storage.SMALLEST_RUN_DIR),
        sized(storage.ENOUGH_RUN_DIR),
        f"{storage.CLOCK_SKEW_SECONDS:g} s of difference",
    ),
    CheckName.HOST_RUN_DIR_SPEED: (
        f"a write of {sized(storage.PROBE_BYTES)}",
        f"after {storage.PROBE_SECONDS:g} s",
        f"below {storage.SLOW / 1e6:.0f} MB/s",
    ),
    CheckName.HOST_TEMP_DIR: (
        f"below {sized(storage.SMALLEST_TEMP)}",
        f"below {sized(storage.ENOUGH_TEMP)}",
        f"{storage.RAY_FULL:.0%} are in use",
    ),
    CheckName.GPU_DEVICES: (gpu_driver.AMD_GROUPS.partition("with ")[2],),
    CheckName.GPU_REMAPPED_ROWS: (f"over {gpu_health.MOST_REMAPPED_ROWS} rows",),
    CheckName.GPU_TEMPERATURE: (f"({gpu_health.HOTTEST:g} °C", f"warns {gpu_health.WARM:g} °C"),
    CheckName.GPU_MEMORY: (
        f"from {sized(gpu_health.HELD_WARNS)}",
        f"from {gpu_health.HELD_FAILS:.0%}",
    ),
    CheckName.GPU_BURN: (
        f"{gpu_burn.LEAST_MATMUL:.0%}",
        f"{gpu_burn.LEAST_COPY:.0%}",
        f"{gpu_burn.ENOUGH_MATMUL:.0%}",
        f"{gpu_burn.ENOUGH_COPY:.0%}",
    ),
    CheckName.FABRIC_GID: (infiniband.ROCE_V2,),
    CheckName.FABRIC_MTU: (f"below {fabric.SMALL_MTU} bytes",),
    CheckName.FABRIC_ERRORS: (
        ", ".join(f"`{name}`" for name in infiniband.ERRORS),
        f"within {fabric.WATCH_SECONDS:g} s",
    ),
    CheckName.FABRIC_RUNPOD: (network.RUNPOD_NETWORK,),
    CheckName.NODES_VERSIONS: (", ".join(refusal.MUST_AGREE),),
    CheckName.NODES_STORAGE: (f"{STORAGE_GRACE_SECONDS:g} s",),
    CheckName.NODES_CLOCK: (
        f"from {refusal.CLOCK_FAILS:g} s",
        f"from {reported_differences.CLOCK_WARNS:g} s",
    ),
    CheckName.NODES_SOFTWARE: (", ".join(reported_differences.SOFTWARE),),
    CheckName.NODES_COLLECTIVE: (
        f"below {collective.FAILS:.0%}",
        f"below {collective.WARNS:.0%}",
        f"less than {SLOW_PAIR:.0%}",
    ),
}
"""What the page says of a check with the constants of its module."""


def test_the_names_that_can_be_skipped_are_those_of_all_checks() -> None:
    own = [check.name for check in CHECKS]
    assert [*own, *reported_differences.CHECKS, CheckName.NODES_COLLECTIVE] == list(CheckName)


def test_every_check_has_one_row_with_verdict_and_remedy() -> None:
    assert sorted(name for name, *_ in FOUND) == sorted(CheckName)
    assert [name for name, _, warns, fails, _ in FOUND if warns == fails == "–"] == []
    assert [name for name, _, _, _, remedy in FOUND if remedy == "–"] == []


def test_the_page_has_the_time_limit_of_each_node_check() -> None:
    assert f"fails: {USUAL_SECONDS} s, if the table names no other" in " ".join(PAGE.split())
    limits = {check.name: check.timeout for check in CHECKS}
    assert {name: LIMITS.get(name, USUAL_SECONDS) for name in limits} == limits
    assert LIMITS.keys() <= limits.keys()


def test_no_cell_of_a_table_is_a_paragraph() -> None:
    cells = [cell for row in re.findall(r"^\| (.+) \|$", PAGE, re.M) for cell in row.split(" | ")]
    assert [cell for cell in cells if len(cell.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("name", NUMBERS)
def test_the_page_has_the_numbers_of_the_code(name: CheckName) -> None:
    assert [text for text in NUMBERS[name] if plain(text) not in ROWS[name]] == []


def test_the_table_of_models_is_current() -> None:
    """Renewed by `python -m tests.support.doc_pages`."""
    assert with_models(PAGE) == PAGE
