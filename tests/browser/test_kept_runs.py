"""The page of runs that are over: one run, a list of them, and curves over each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from contract.progress import Progress
from entrypoint.cluster.kept_runs import KeptRunsServer
from entrypoint.job import supervisor
from entrypoint.job.ray_jobs import JobInfo
from entrypoint.run.lost_head import Failover
from tests.support import reported_runs
from tests.support.accessible import is_for_everyone
from tests.support.broken_words import ROWS_OF_WORDS
from tests.support.flight_events import Clock
from tests.support.world import World, ends

pytestmark = pytest.mark.browser
BOTH = re.compile("low-rate: .*; high-rate: |high-rate: .*; low-rate: ")
WORDS = ("report", "open", "logs")
DATED = re.compile(r"^2026-01-01 \d\d:\d\d, \d+ (?:s|min)$")
LAST_ROW = "element => [...element.getClientRects()].at(-1).bottom"
"""How far down the last row of an element's text is, in pixels."""


def test_a_run_that_is_over_says_how_it_ended_and_asks_for_no_head(
    tab: Page, tmp_path: Path
) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    run.exported.mkdir()
    (run.exported / "config.json").write_text("{}")
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        expect(tab.locator("#state")).to_have_text("Finished")
        expect(tab.locator("#facts")).to_contain_text(f"Trained model{run.exported}")
        expect(tab.locator("#verdict")).to_have_text("The run has finished: nothing to do.")
        expect(tab.locator("#attempts li").first).to_contain_text("Attempt 2")
        expect(tab.locator("#charts figure").first).to_be_visible()
        best = tab.locator("#facts").get_by_text("0.8751 held-out accuracy, step 60")
        expect(best).to_be_visible()
        for absent in ("#of-nodes", "#controls", "#attention", "#runs", "#back"):
            expect(tab.locator(absent)).to_be_hidden()
        is_for_everyone(tab)
    expect(tab.locator("#lost")).to_contain_text("open the page by a new link of rollcall open")


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("UTC", "Started 2026-01-01 00:00, ended 01:03, took 1 h 3 min"),
        ("Pacific/Apia", "Started 2026-01-01 13:00, ended 14:03, took 1 h 3 min"),
        (
            "America/Sao_Paulo",
            "Started 2025-12-31 21:00, ended 22:03, took 1 h 3 min",
        ),
        ("America/Noronha", "Started 2025-12-31 22:00, ended 23:03, took 1 h 3 min"),
        ("Atlantic/Cape_Verde", "Started 2025-12-31 23:00, ended 2026-01-01 00:03, took"),
    ],
)
def test_the_times_of_a_run_are_those_of_its_readers_clock(
    chromium: Browser, tmp_path: Path, zone: str, said: str
) -> None:
    run = reported_runs.with_faults(tmp_path / "a")
    with KeptRunsServer(run.root) as server, chromium.new_context(timezone_id=zone) as context:
        tab = context.new_page()
        tab.goto(server.link)
        expect(tab.locator("#times")).to_contain_text(said)
        began, ended = tab.locator("#times time").all()
        expect(began).to_have_attribute("title", "2026-01-01 00:00:00 UTC")
        expect(ended).to_have_attribute("title", "2026-01-01 01:03:41 UTC")


def test_a_run_that_failed_says_its_error_and_the_place_in_the_users_code(
    tab: Page, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    program = tmp_path / "model.py"
    program.write_text("import json\n\njson.loads('')\n")
    words = [sys.executable, str(program)]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stderr
    died = JobInfo("FAILED", said, driver_exit_code=1)
    world = World(tmp_path / "run", ends(died, says=said.splitlines()), ROLLCALL_MAX_RESTARTS="0")
    again = "cd /job && rollcall up --run_dir '/runs/my run'"
    world.journal.record("start", "this is the head", resume=again)
    supervisor.record(world.lives(), world.context, 1.0)
    with KeptRunsServer(world.run.root) as server:
        tab.goto(server.link)
        error = said.splitlines()[-1]
        expect(tab.locator("#verdict")).to_contain_text(f"{error}, in {program}:3. Read the log")
        expect(tab.locator("#resume code")).to_have_text(again)


def test_a_run_whose_head_died_says_to_start_it_again(tab: Page, tmp_path: Path) -> None:
    clock = Clock()
    again = "cd /job && rollcall up --run_dir '/runs/my run'"
    off = Failover.of_head(0.0, "ROLLCALL_HEAD_FAILOVER is off").as_dict()
    clock.then(0, "start", resume=again, failover=off)
    clock.begins(1)
    clock.steps(1, 1, 2, 3)
    run = reported_runs.written(tmp_path / "a", clock)
    run.leases.mkdir()
    (run.leases / "1").write_text("{}")
    Progress(step=64, total_steps=256, step_seconds=1.0).write(run.progress)
    with KeptRunsServer(run.root) as server:
        tab.goto(server.link)
        expect(tab.locator("#state")).to_have_text("Running")
        expect(tab.locator("#state")).to_have_text("Head lost")
        still = re.compile(r"^The job still trains: step 64 at \S+\. Start the head again\.$")
        expect(tab.locator("#verdict")).to_have_text(still)
        old = Progress(step=64, total_steps=256, step_seconds=1.0, at="2026-01-01T00:00:00+00:00")
        old.write(run.progress)
        expect(tab.locator("#verdict")).to_have_text("Start the head again.")
        expect(tab.locator("#sentence")).to_contain_text("as ROLLCALL_HEAD_FAILOVER is off")
        expect(tab.locator("#resume code")).to_have_text(again)
        expect(tab.locator("#attempts li")).to_contain_text("· head_lost")
        expect(tab.get_by_role("heading", name="Curves")).to_be_hidden()  # it has none


def test_two_runs_lie_over_each_other_in_one_colour_each(tab: Page, tmp_path: Path) -> None:
    reported_runs.with_faults(tmp_path / "low-rate")
    reported_runs.with_faults(tmp_path / "high-rate")
    reported_runs.tells_loss(tmp_path / "sft")
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        expect(tab.locator("#run-rows tr")).to_have_count(3)
        expect(tab.get_by_role("heading", level=1)).to_contain_text(f"Runs in {tmp_path.name}")
        tab.get_by_label("Curves of low-rate").check()
        tab.get_by_label("Curves of high-rate").check()
        rewards = tab.get_by_role("img", name="Reward: reward")
        expect(rewards).to_have_accessible_name(BOTH)
        colours = tab.locator("#together .u-legend .u-series:nth-child(2) .u-marker")
        shown = colours.evaluate_all("all => all.map(one => getComputedStyle(one).borderColor)")
        assert len(shown) > 5  # charts
        assert len(set(shown)) == 1
        is_for_everyone(tab)
        tab.reload()  # the address names what is chosen
        expect(rewards).to_have_accessible_name(BOTH)
        tab.get_by_label("Curves of low-rate").uncheck()
        tab.get_by_label("Curves of high-rate").uncheck()
        expect(tab.locator("#together figure")).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_name_breaks_no_word_beside_it_and_stays_with_its_value_below_a_chart(
    tab: Page, tmp_path: Path, width: int
) -> None:
    long = "a-long-name-of-a-run-with-learning-rate-1e-6-and-two-epochs-and-seed-17"
    reported_runs.with_faults(tmp_path / long)
    reported_runs.tells_loss(tmp_path / "sft")
    tab.set_viewport_size({"width": width, "height": 900})
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        tab.get_by_label(f"Curves of {long}").check()
        cells = tab.locator(
            "#run-rows :is([data-name=state] span, [data-name=recipe], [data-name=steps])"
        )
        expect(tab.locator("#run-rows tr")).to_have_count(2)
        assert set(cells.evaluate_all(ROWS_OF_WORDS)) == {1}
        assert cells.count() == 6
        state = tab.get_by_text("✓ Finished").first.bounding_box()
        assert state is not None
        assert state["height"] < 40
        label = tab.locator("#together .u-label").nth(1)
        expect(label).to_have_text(long)
        value = tab.locator("#together .u-series .u-value").nth(1)
        last, its = label.evaluate(LAST_ROW), value.evaluate(LAST_ROW)
        assert abs(last - its) < 8


@pytest.mark.parametrize("width", [390, 1280])
def test_tables_of_a_comparison_break_names_of_flags_at_their_parts_alone(
    tab: Page, tmp_path: Path, width: int
) -> None:
    long = "actor_rollout_ref.rollout.gpu_memory_utilization"
    for name, value in (("low", "0.6"), ("high_memory_for_all_engines", "0.9")):
        run = reported_runs.with_faults(tmp_path / name)
        flags = {long: value, "advantage_estimator": name}
        run.run.write_text(json.dumps({"recipe": "builtin", "flags": flags}))
    tab.set_viewport_size({"width": width, "height": 900})
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        tab.get_by_label("Curves of low").check()
        tab.get_by_label("Curves of high_memory_for_all_engines").check()
        expect(tab.locator("#flags-table tbody th").nth(0)).to_have_text(long)
        cells = tab.locator(".table :is(th, td)")
        assert set(cells.evaluate_all(ROWS_OF_WORDS)) == {1}
        is_for_everyone(tab)


def test_a_run_that_failed_has_the_commands_to_go_on_in_the_list(tab: Page, tmp_path: Path) -> None:
    clock = Clock()
    clock.then(0, "start", resume="rollcall up --seed 3")
    clock.begins(1)
    clock.steps(1, 1, 2)
    clock.then(3, "outcome", outcome="failed", exit_code=70)
    reported_runs.written(tmp_path / "my run", clock)
    reported_runs.tells_loss(tmp_path / "sft")
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        expect(tab.locator("#run-rows summary")).to_have_count(1)
        tab.get_by_text("commands").click()
        said = tab.locator("#run-rows code")
        path = f"'{tmp_path}/my run'"
        expect(said).to_have_text(
            ["rollcall up --seed 3", *(f"rollcall {word} {path}" for word in WORDS)]
        )
        expect(tab.locator("#run-rows [data-name=time]").first).to_have_text(DATED)
        is_for_everyone(tab)


def test_what_no_user_chose_is_no_difference_of_two_runs(tab: Page, tmp_path: Path) -> None:
    for number in (1, 2):
        home = tmp_path / f"demo-{number}"
        run = reported_runs.with_faults(home / "run")
        places = {"run_dir": str(run.root), "wandb_run_name": f"demo-{number}"}
        same = {"pretrain": f"{home}/model", "remote_rm_url": f"http://127.0.0.1:500{number}/get"}
        flags = {**places, **same, "seed": str(number)}
        run.run.write_text(json.dumps({"name": home.name, "recipe": "builtin", "flags": flags}))
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        for number in (1, 2):
            tab.get_by_label(f"Curves of demo-{number}").check()
        expect(tab.locator("#flags-table tbody th")).to_have_text(["seed"])


def test_the_list_leads_to_a_run_and_back(tab: Page, tmp_path: Path) -> None:
    reported_runs.with_faults(tmp_path / "first")
    reported_runs.tells_loss(tmp_path / "second")
    with KeptRunsServer(tmp_path) as server:
        tab.goto(server.link)
        tab.get_by_label("Find").fill("supervised")
        expect(tab.locator("#run-rows tr")).to_have_count(1)
        tab.get_by_role("link", name="second").click()
        expect(tab.locator("#name")).to_have_text("second")
        expect(tab.get_by_role("img", name="Loss")).to_be_visible()
        tab.get_by_role("link", name="All runs").click()
        expect(tab.locator("#name")).to_contain_text("Runs in")
        expect(tab.locator("#state")).to_be_hidden()
        tab.go_back()
        expect(tab.locator("#name")).to_have_text("second")
