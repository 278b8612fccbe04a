"""The environment is read once: every fault at once, each with its remedy, and no secret shown."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.files import child_variables
from contract.options import ConfigError, Declared
from entrypoint.commands import plan
from entrypoint.config import role
from entrypoint.config.durations import SHORTEST_SECONDS
from entrypoint.config.platforms.facts import REMEDIES
from entrypoint.config.read import read_settings
from entrypoint.config.settings import (
    DebugRay,
    PortRange,
    PreflightMode,
    Secret,
    ServiceOn,
    Settings,
    declared,
    variable_names,
)
from entrypoint.config.uses import OF_JOB
from entrypoint.config.variables import Variable
from entrypoint.node.heritage import OF_NODE
from entrypoint.run import token as run_token
from tests.support import doc_pages
from tests.support.variable_groups import GROUPS, ON_HEAD, ON_WORKER

SECRET = "9f86d081884c7d659a2feaa0c55ad015"


def faults(environ: dict[str, str], *job: str) -> dict[str, str]:
    """Variable to the sentence about it."""
    with pytest.raises(ConfigError) as caught:
        read_settings(environ, job)
    return {fault.path: str(fault) for fault in caught.value.faults}


def test_an_empty_environment_has_the_defaults_of_the_design() -> None:
    told = read_settings({})
    assert (told.ray_worker, told.expected_workers, told.recipe) == (None, None, "builtin")
    assert told.run_dir == Path("/checkpoints")
    assert (told.ray_port, told.dashboard_port, told.control_port) == (6379, 8265, 8267)
    assert told.worker_ports == PortRange(10002, 10999)
    assert (told.head_timeout, told.roll_timeout, told.service_timeout) == (600, 1800, 600)
    assert (told.reward_on, told.retriever_on) == (ServiceOn.HEAD, ServiceOn.EVERY)
    assert (told.max_restarts, told.preflight) == (3, PreflightMode.STRICT)
    assert (told.grace_seconds, told.node_timeout, told.hang_timeout) == (25, 15, None)


@pytest.mark.parametrize("raw", ["1", "true", "YES", "On", " 1 "])
def test_a_worker_is_said_in_any_spelling_of_yes(raw: str) -> None:
    assert read_settings({"RAY_WORKER": raw}).ray_worker is True


@pytest.mark.parametrize("raw", ["0", "false", "No", "OFF"])
def test_a_head_is_said_in_any_spelling_of_no(raw: str) -> None:
    assert read_settings({"RAY_WORKER": raw}).ray_worker is False


def test_empty_variables_count_as_not_set() -> None:
    told = read_settings(dict.fromkeys(NAMES, " "))
    assert repr(told) == repr(read_settings({}))


@pytest.mark.parametrize(
    ("variable", "raw", "problem"),
    [
        ("EXPECTED_WORKERS", "two", "is not a whole number"),
        ("EXPECTED_WORKERS", "-1", "must be at least 0"),
        ("EXPECTED_WORKERS", "1.5", "is not a whole number"),
        ("EXPECTED_WORKERS", "٣", "is not a whole number"),
        ("EXPECTED_WORKERS", "9" * 5000, "is not a whole number"),
        ("RAY_WORKER", "maybe", "is neither yes nor no"),
        ("DEBUG_RAY", "2", "post-mortem"),
        ("HEAD_POD_ID", "abc.runpod.internal", "ROLLCALL_HEAD_ADDRESS"),
        ("HEAD_POD_ID", "abc 123", "is not a pod's id"),
        ("ROLLCALL_HEAD_ADDRESS", "10.0.0.1:6379", "without a port"),
        ("ROLLCALL_HEAD_ADDRESS", "1.2.3.400", "is neither a host name nor an address"),
        ("ROLLCALL_HEAD_ADDRESS", "0.0.0.0", "is not an address that a node can have"),
        ("ROLLCALL_BIND", "10.0.0.1:8267", "without a port"),
        ("ROLLCALL_BIND", "*", "is neither a host name nor an address"),
        ("ROLLCALL_BIND", "fe80::1", "is link-local"),
        ("ROLLCALL_BIND", "ff02::1", "is not an address that a node can have"),
        ("ROLLCALL_BIND", "::ffff:10.0.0.1", "is an IPv4 address in IPv6's form: give 10.0.0.1"),
        ("ROLLCALL_HEAD_TIMEOUT", "soon", "90s, 10m"),
        (
            "ROLLCALL_HEAD_TIMEOUT",
            "0",
            "is 0 s, and must be at least 1 s: give a duration",
        ),
        ("ROLLCALL_HEAD_TIMEOUT", "8761h", "must be at most 365 days"),
        ("ROLLCALL_HEAD_TIMEOUT", "-5m", "is not a duration"),
        ("ROLLCALL_HEAD_FAILOVER", "on", "is neither auto nor off, nor a duration"),
        ("ROLLCALL_HEAD_FAILOVER", "-1", "give auto (8 s), off (never), or a duration"),
        ("ROLLCALL_HEAD_FAILOVER", "1s", "is 1 s, and must be at least 8 s: give auto (8 s), off"),
        ("ROLLCALL_HANG_TIMEOUT", "1", "is 1 s, and must be at least 5 s"),
        ("ROLLCALL_GPU_MEMORY", "80MB", "must be from 1 GB to 10,000 GB"),
        ("ROLLCALL_IMAGE", "a b", "is no name of an image"),
        (
            "ROLLCALL_RECIPE",
            "vrl",
            "is not a recipe: give builtin, command, openrlhf, search-r1, supervised, torchrun, "
            "trl, verl or verl-sft",
        ),
        ("ROLLCALL_JOB", "--name 'unclosed", "has a quote that is not closed"),
        ("ROLLCALL_JOB", "python a.py 2>&1 | tee log", "has the shell syntax 2>&1"),
        ("ROLLCALL_JOB", "python a.py|tee log", "has the shell syntax |"),
        ("ROLLCALL_JOB", "cd /x && python a.py", "has the shell syntax &&"),
        ("ROLLCALL_JOB", "--out $HOME/x", "has the shell syntax $"),
        ("ROLLCALL_JOB", "--out `pwd`", "has the shell syntax `"),
        ("ROLLCALL_REWARD_COMMAND", "python s.py > log", "has the shell syntax >"),
        ("ROLLCALL_RETRIEVER_COMMAND", "python s.py &", "has the shell syntax &"),
        ("ROLLCALL_RUN_DIR", "checkpoints", "is not an absolute path"),
        *(
            ("ROLLCALL_RUN_DIR", path, "is a directory of the system")
            for path in ("/", "//", "/etc/", "/usr/../root", "/proc/self/fd", "/dev/run", "/tmp")
        ),
        ("ROLLCALL_RUNTIME_ENV", "[" * 3000, "nested"),
        ("ROLLCALL_REWARD_URL", "head:5000", "is not an http or https URL"),
        ("ROLLCALL_REWARD_URL", "http://head:99999/", "is not an http or https URL"),
        ("ROLLCALL_REWARD_URL", "http://a:1,http://b:2", "URL"),
        ("ROLLCALL_REWARD_ON", "all", "give head or every"),
        ("ROLLCALL_PREFLIGHT", "none", "give strict, warn or off"),
        ("ROLLCALL_RESOURCES", "v100=8", "is not JSON"),
        ("ROLLCALL_RESOURCES", '["v100"]', "is not a JSON object"),
        ("ROLLCALL_RESOURCES", '{"v100": true}', "is not a whole number"),
        ("ROLLCALL_RESOURCES", '{"v100": 0.5}', "is not a whole number"),
        ("ROLLCALL_RESOURCES", '{"v100": NaN}', "is not a whole number"),
        ("ROLLCALL_RESOURCES", '{"GPU": 8}', "set ROLLCALL_NUM_GPUS"),
        ("ROLLCALL_RESOURCES", "[" * 100_000, "is not JSON"),
        ("ROLLCALL_RAY_PORT", "0", "must be at least 1"),
        ("ROLLCALL_RAY_PORT", "70000", "must be at most 65535"),
        ("ROLLCALL_WORKER_PORTS", "10002", "is not a range of ports"),
        ("ROLLCALL_WORKER_PORTS", "10999-10002", "does not go upwards"),
        ("ROLLCALL_WORKER_PORTS", "10002-10003", "holds fewer than 32 ports"),
        ("ROLLCALL_NODE_NAME", "../head", "cannot name a log file"),
        ("ROLLCALL_RAY_TEMP_DIR", "/tmp/" + "x" * 60, "too long for the sockets"),
        ("ROLLCALL_NUM_GPUS", "all", "is not a whole number"),
        ("ROLLCALL_GRACE_SECONDS", "inf", "is not a duration"),
        ("ROLLCALL_TOKEN", "two words", "has characters that no key has"),
        ("ROLLCALL_TOKEN", "x", "has fewer than 16 characters"),
        ("ROLLCALL_TOKEN", "a" * 15, "`openssl rand -hex 24` makes a new one of 48 characters"),
    ],
)
def test_a_malformed_value_is_named_with_what_would_be_right(
    variable: str, raw: str, problem: str
) -> None:
    told = faults({variable: raw})
    assert list(told) == [variable]
    assert problem in told[variable]
    assert told[variable].startswith(f"{variable}=")
    assert "\n" not in told[variable]


ABSURD = "\N{SNOWMAN}/ '("


@pytest.mark.parametrize("one", declared().values(), ids=lambda one: one.name)
def test_each_variable_has_values_that_it_refuses(one: Declared[Variable]) -> None:
    values = [ABSURD] if one.name != "ROLLCALL_START_ID" else []  # any text is an id
    if one.kind is int:
        values += ["-1", "10000000"]
    if one.kind is float:
        shorter = (one.about.at_least or SHORTEST_SECONDS) - 0.1
        values += ["1 day", f"{shorter}s", "9000h"]
    for value in values:
        told = faults({one.name: value})
        assert list(told) == [one.name], value


def test_every_fault_is_reported_at_once() -> None:
    environ = {"EXPECTED_WORKERS": "two", "RAY_WORKER": "maybe", "ROLLCALL_RAY_PORT": "x"}
    assert set(faults(environ)) == set(environ)


@pytest.mark.parametrize(
    ("environ", "at_fault"),
    [
        (
            {"ROLLCALL_MIN_WORKERS": "x", "ROLLCALL_RAY_PORT": "8265", "EXPECTED_WORKERS": "0"}
            | {"ROLLCALL_SPARE_WORKERS": "2"},
            {"ROLLCALL_MIN_WORKERS", "ROLLCALL_RAY_PORT", "ROLLCALL_SPARE_WORKERS"},
        ),
        (
            {"ROLLCALL_DASHBOARD_PORT": "0", "ROLLCALL_CONTROL_PORT": "6379"},
            {"ROLLCALL_DASHBOARD_PORT", "ROLLCALL_RAY_PORT"},
        ),
        (
            {"ROLLCALL_MIN_WORKERS": "5", "EXPECTED_WORKERS": "2", "ROLLCALL_TLS": "maybe"},
            {"ROLLCALL_MIN_WORKERS", "ROLLCALL_TLS"},
        ),
    ],
)
def test_a_fault_hides_no_other(environ: dict[str, str], at_fault: set[str]) -> None:
    assert set(faults(environ)) == at_fault


@pytest.mark.parametrize(
    ("environ", "at_fault"),
    [
        ({"ROLLCALL_TLS": "maybe", "ROLLCALL_TLS_CERT": "/x"}, "ROLLCALL_TLS"),
        ({"EXPECTED_WORKER": "4", "ROLLCALL_MIN_WORKERS": "3"}, "EXPECTED_WORKER"),
        ({"ROLLCALL_STORAGE": "head", "ROLLCALL_TOKEN": "short"}, "ROLLCALL_TOKEN"),
        ({"RAY_WORKER": "1", "ROLLCALL_HEAD_ADDRESS": "a:1"}, "ROLLCALL_HEAD_ADDRESS"),
        (
            {"ROLLCALL_RESUME_ARGS": "{checkpoint}", "ROLLCALL_CHECKPOINTS": "a"}
            | {"ROLLCALL_RECIPE": "command"},
            "ROLLCALL_CHECKPOINTS",
        ),
        ({"ROLLCALL_REWARD_COMMAND": "serve", "ROLLCALL_REWARD_URL": "a"}, "ROLLCALL_REWARD_URL"),
    ],
)
def test_a_fault_has_no_other_as_its_consequence(environ: dict[str, str], at_fault: str) -> None:
    assert set(faults(environ)) == {at_fault}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("ROLLCALL_WROKERS", "ROLLCALL_MIN_WORKERS"),
        ("ROLLCALL_EXPECTED_WORKERS", "EXPECTED_WORKERS"),
        ("ROLLCALL_RUNDIR", "ROLLCALL_RUN_DIR"),
        ("ROLLCALL_GRACE_SECOND", "spell it as ROLLCALL_GRACE_SECONDS"),
        ("ROLLCALL_TOKEN_FLE", "ROLLCALL_TOKEN_FILE"),
        ("rollcall_run_dir", "ROLLCALL_RUN_DIR"),
    ],
)
def test_an_unknown_name_with_our_prefix_is_offered_the_nearest_right_one(
    wrong: str, right: str
) -> None:
    told = faults({wrong: "hunter2"})
    assert right in told[wrong]
    assert "REPLACE_COMMAND" not in told[wrong]
    assert "hunter2" not in told[wrong]  # it may be a misspelt secret


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("EXPECTED_WORKER", "EXPECTED_WORKERS"),
        ("RAY_WORKERS", "RAY_WORKER"),
        ("HEADPOD_ID", "HEAD_POD_ID"),
        ("WANDB_APIKEY", "WANDB_API_KEY"),
        ("head_pod_id", "HEAD_POD_ID"),
    ],
)
def test_a_name_that_is_nearly_one_of_ours_is_offered_the_right_one(wrong: str, right: str) -> None:
    told = faults({wrong: "hunter2"})
    assert f"spell it as {right}" in told[wrong]
    assert "hunter2" not in told[wrong]
    read_settings({wrong: "hunter2", right: "1"})  # then it is another program's


def test_variables_of_others_that_resemble_ours_are_let_be() -> None:
    theirs = dict.fromkeys(("RAY_WORKER_ID", "HEAD_POD_IP", "WANDB_KEY", "RAY_DEBUG"), "1")
    assert read_settings(theirs).environ == theirs


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"HEAD_POD": "abc"},
            "HEAD_POD is not a setting and does not count: did you mean",
        ),
        ({"EXPECTED_WORKER_COUNT": "2"}, "did you mean EXPECTED_WORKERS?"),
        ({"EXPECTED_WORKER": "2", "EXPECTED_WORKERS": "0"}, "did you mean EXPECTED_WORKERS?"),
        ({"EXPECTED_WORKER": "0", "EXPECTED_WORKERS": "0"}, ""),
        ({"expected_workers": "2", "EXPECTED_WORKERS": "0"}, ""),
        ({"HEAD_POD": "abc", "HEAD_POD_ID": "abc"}, ""),
        ({"HEAD_SERVICE_HOST": "10.0.0.7", "HEAD_POD_SERVICE_HOST": "10.0.0.8"}, ""),
        ({"HEAD_POD_SERVICE_HOST": "10.0.0.8", "HEAD_POD_PORT": "tcp://10.0.0.8:1"}, ""),
        ({"RUNPOD_POD_ID": "xyz", "RAY_WORKER_ID": "1", "WANDB_KEY": "k"}, ""),
    ],
)
def test_a_name_that_is_like_one_of_ours_is_warned_of(environ: dict[str, str], said: str) -> None:
    warnings = [one for one in role.warnings(read_settings(environ)) if "is not a setting" in one]
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


def test_a_worker_without_a_head_is_shown_the_name_that_may_mean_it() -> None:
    settings = read_settings({"RAY_WORKER": "1", "HEAD_POD": "abc"})
    with pytest.raises(ConfigError, match=r"HEAD_POD_ID is not set.* HEAD_POD is: spell it as"):
        role.decide(settings)


def test_the_variables_of_a_kubernetes_service_called_rollcall_are_no_misspelt_settings() -> None:
    service = {
        "ROLLCALL_HEAD_SERVICE_HOST": "10.0.0.7",
        "ROLLCALL_HEAD_SERVICE_PORT_HTTP": "8267",
        "ROLLCALL_HEAD_PORT": "tcp://10.0.0.7:8267",
        "ROLLCALL_HEAD_PORT_8267_TCP_ADDR": "10.0.0.7",
    }
    assert read_settings(service).environ == service


def test_the_port_of_a_kubernetes_service_called_rollcall_ray_is_no_setting() -> None:
    service = {"ROLLCALL_RAY_SERVICE_HOST": "10.0.0.7", "ROLLCALL_RAY_SERVICE_PORT": "6379"}
    assert read_settings(service | {"ROLLCALL_RAY_PORT": "tcp://10.0.0.7:6379"}).ray_port == 6379
    assert read_settings(service | {"ROLLCALL_RAY_PORT": "7000"}).ray_port == 7000
    with pytest.raises(ConfigError, match="ROLLCALL_RAY_PORT"):
        read_settings({"ROLLCALL_RAY_PORT": "tcp://10.0.0.7:6379"})


def test_names_that_a_node_sets_for_its_children_are_known() -> None:
    given = dict.fromkeys(child_variables.ALL, "2")
    assert read_settings(given).environ == given


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "ROLLCALL_TOKEN"])
def test_a_secret_comes_from_a_file_and_does_not_reach_the_environment(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    told = read_settings({f"{name}_FILE": str(tmp_path / "secret")})
    secret = {"WANDB_API_KEY": told.wandb_api_key, "ROLLCALL_TOKEN": told.token}[name]
    assert secret is not None
    assert secret.reveal() == SECRET
    assert type(secret.reveal()) is str
    assert SECRET not in told.environ.values()
    assert SECRET in told.secrets


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "ROLLCALL_TOKEN"])
def test_a_secret_given_twice_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    told = faults({name: SECRET, f"{name}_FILE": str(tmp_path / "secret")})
    assert f"is set beside {name}" in told[f"{name}_FILE"]
    assert SECRET not in str(told)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b"", "names an empty file"), (b"\xff\xfe", "is not text")],
)
def test_a_secret_file_that_cannot_be_used_is_a_fault(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    assert problem in faults({"WANDB_API_KEY_FILE": str(path)})["WANDB_API_KEY_FILE"]


def test_a_secret_is_masked_however_it_is_printed() -> None:
    secret = Secret(SECRET)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r:>40}", "%s" % secret]  # noqa: UP031
    assert not [text for text in shown if SECRET in text]
    assert SECRET not in repr(read_settings({"WANDB_API_KEY": SECRET, "MY_PASSWORD": SECRET}))


@pytest.mark.parametrize(
    "environ",
    [
        {"DEBUG_RAY": "1", "RAY_DEBUG_POST_MORTEM": "1"},
        {"DEBUG_RAY": "post-mortem", "RAY_DEBUG": "legacy"},
        {"RAY_DEBUG": "legacy", "RAY_DEBUG_POST_MORTEM": "1"},
    ],
)
def test_both_of_rays_debuggers_together_are_refused(environ: dict[str, str]) -> None:
    (sentence,) = faults(environ).values()
    assert all(name in sentence for name in environ)


def test_one_of_rays_debuggers_is_fine() -> None:
    assert read_settings({"DEBUG_RAY": "true"}).debug_ray is DebugRay.LEGACY
    assert read_settings({"DEBUG_RAY": "0"}).debug_ray is DebugRay.OFF
    told = read_settings({"DEBUG_RAY": "Post-Mortem", "RAY_DEBUG_POST_MORTEM": "1"})
    assert told.debug_ray is DebugRay.POST_MORTEM
    assert read_settings({"DEBUG_RAY": "1", "RAY_DEBUG_POST_MORTEM": "0"}).debug_ray == "legacy"
    assert read_settings({"RAY_DEBUG": "legacy"}).debug_ray is DebugRay.LEGACY
    assert read_settings({"RAY_DEBUG": "1"}).debug_ray is DebugRay.OFF
    assert read_settings({"RAY_DEBUG_POST_MORTEM": "1"}).debug_ray is DebugRay.POST_MORTEM


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"ROLLCALL_RAY_PORT": "8265"}, ("ROLLCALL_RAY_PORT", "ROLLCALL_DASHBOARD_PORT")),
        ({"ROLLCALL_CONTROL_PORT": "10500"}, ("ROLLCALL_CONTROL_PORT", "ROLLCALL_WORKER_PORTS")),
        (
            {
                "ROLLCALL_REWARD_URL": "http://head:6379/get_reward",
                "ROLLCALL_REWARD_COMMAND": "python -m env.server",
            },
            ("ROLLCALL_RAY_PORT", "ROLLCALL_REWARD_URL"),
        ),
    ],
)
def test_two_settings_on_one_port_are_both_named(
    environ: dict[str, str], names: tuple[str, ...]
) -> None:
    (sentence,) = faults(environ).values()
    assert all(name in sentence for name in names)


def test_a_service_command_without_its_url_is_refused() -> None:
    told = faults({"ROLLCALL_REWARD_COMMAND": "python -m env.server --api_key abcd"})
    assert "set ROLLCALL_REWARD_URL" in told["ROLLCALL_REWARD_COMMAND"]
    assert "abcd" not in told["ROLLCALL_REWARD_COMMAND"]


def test_the_job_comes_from_the_variable_or_the_command_line_but_not_from_both() -> None:
    assert read_settings({"ROLLCALL_JOB": "--a 'b c'"}).job == ("--a", "b c")
    assert read_settings({}, ["--a", "b c"]).job == ("--a", "b c")
    assert "command line" in faults({"ROLLCALL_JOB": "--a"}, "--b")["ROLLCALL_JOB"]


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("10m", 600), ("10 min", 600), ("2h", 7200)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(raw: str, seconds: float) -> None:
    assert read_settings({"ROLLCALL_ROLL_TIMEOUT": raw}).roll_timeout == seconds


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        ("head.example.org", "head.example.org"),
        ("10.1.2.3", "10.1.2.3"),
        ("fd00::1", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
    ],
)
def test_a_head_address_is_a_name_or_an_address(raw: str, address: str) -> None:
    assert read_settings({"ROLLCALL_HEAD_ADDRESS": raw}).head_address == address


def test_resources_are_whole_amounts_by_name() -> None:
    told = read_settings({"ROLLCALL_RESOURCES": '{"v100": 8, "disk": 2.0}'})
    assert told.resources == {"v100": 8, "disk": 2}


def test_a_node_is_called_as_told_else_by_its_pod_else_by_its_host() -> None:
    pod = {"RUNPOD_POD_ID": "xyz789"}
    assert read_settings(pod | {"ROLLCALL_NODE_NAME": "n1"}).node_name == "n1"
    assert read_settings(pod).node_name == "xyz789"
    assert read_settings({}).node_name


def test_a_control_character_in_a_value_cannot_forge_a_line() -> None:
    (sentence,) = faults({"EXPECTED_WORKERS": "1\nall is well\x1b[2J"}).values()
    assert "\n" not in sentence
    assert "\x1b" not in sentence


def test_the_tables_cover_every_field_once_and_their_rows_make_whole_lines() -> None:
    undeclared = {one.name for one in fields(Settings)} - declared().keys()
    assert undeclared == {"environ", "platform", "around_job"}
    for variable in declared().values():
        assert variable.about.help.endswith(".")
        assert variable.about.shown_default
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(declared())
    rows = [line for line in doc_pages.variables().splitlines() if line.startswith("| `")]
    assert len(rows) == len(declared())
    assert {line.count(" | ") for line in rows} == {3}


def test_the_reference_says_where_each_variable_is_set() -> None:
    """What a node has for itself is not of the head; what a job needs is of the head."""
    assert declared().keys() >= ON_HEAD | ON_WORKER
    assert ON_HEAD.isdisjoint(OF_NODE)
    assert ON_HEAD.issuperset(OF_JOB)


def test_each_fact_that_a_platform_can_get_wrong_can_be_replaced_by_a_variable() -> None:
    replaced = {fact for one in declared().values() for fact in one.about.replaces}
    assert replaced == set(REMEDIES)


NAMES = variable_names()
PLATFORM_NAMES = ["RUNPOD_POD_ID", "PRIMARY_ADDR", "NODE_RANK", "NUM_NODES", "NODE_ADDR"]
VALUES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["1", "0", "3", "abc", "10m", "{}", "command", "http://a:1/", "/tmp/x", "-1"]),
    st.just(f"--token {SECRET} '"),
)


@settings(max_examples=200, deadline=None)
@given(
    environ=st.dictionaries(
        st.one_of(
            st.sampled_from(NAMES + PLATFORM_NAMES),
            st.from_regex(r"ROLLCALL_[A-Z_]{0,12}", fullmatch=True),
        ),
        VALUES,
        max_size=8,
    ),
    job=st.lists(st.text(max_size=10), max_size=2),
)
def test_any_environment_gives_settings_or_faults_and_shows_no_secret(
    environ: dict[str, str], job: list[str]
) -> None:
    environ |= {"WANDB_API_KEY": SECRET, "HF_TOKEN": SECRET}
    told: Settings | ConfigError
    try:
        told = read_settings(environ, job)
    except ConfigError as error:
        told = error
    assert SECRET not in str(told)
    assert SECRET not in repr(told)
    assert SECRET not in json.dumps(plan.plan(told))


def test_a_debugger_that_is_switched_off_by_name_stays_off() -> None:
    job = ["true"]
    given = {"ROLLCALL_RECIPE": "command", "RAY_DEBUG": "legacy"}
    assert read_settings(given, job).debug_ray is DebugRay.LEGACY
    assert read_settings(given | {"DEBUG_RAY": "0"}, job).debug_ray is DebugRay.OFF


def test_a_key_of_the_page_starts_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    told = read_settings({"ROLLCALL_TOKEN": run_token.read_only(SECRET), "ROLLCALL_JOB": "true"})
    assert plan.main(told, as_json=False) == 64
    assert (
        "is a key that a run derived from its token, and starts no node" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({"EXPECTED_WORKER": "2"}, "EXPECTED_WORKER='2'"),
        ({"ROLLCALL_RUN_DIRECTORY": "/shared/run"}, "ROLLCALL_RUN_DIRECTORY='/shared/run'"),
        ({"ROLCALL_RUN_DIR": "/shared/run"}, "ROLCALL_RUN_DIR='/shared/run'"),
        ({"ROLLCAL_TOKEN": "a1B2c3D4e5F6"}, "ROLLCAL_TOKEN='********'"),
        ({"ROLLCALL_TOKN": "2"}, "ROLLCALL_TOKN='********'"),
        ({"ROLLCALL_SOMETHING": "a1B2c3D4e5F6"}, "ROLLCALL_SOMETHING='********'"),
        ({"ROLLCALL_GRACE_SECOND": "5s"}, "ROLLCALL_GRACE_SECOND='5s'"),
        ({"ROLLCALL_MY_PASSWORD": "word"}, "ROLLCALL_MY_PASSWORD='********'"),
    ],
)
def test_the_value_of_an_unknown_variable_is_shown_unless_it_may_be_a_secret(
    environ: dict[str, str], shown: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(environ)
    assert f"{shown} is not a setting" in str(caught.value)
