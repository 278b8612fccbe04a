"""Values as others leave them: quotes of `docker --env-file`, guides' placeholders, Kubernetes."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.options import ConfigError
from entrypoint.config.read import read_settings
from entrypoint.config.settings import declared, variable_names

SECRET = "9f86d081884c7d659a2feaa0c55ad015"


def faults(environ: dict[str, str], *job: str) -> dict[str, str]:
    """Variable to the sentence about it."""
    with pytest.raises(ConfigError) as caught:
        read_settings(environ, job)
    return {fault.path: str(fault) for fault in caught.value.faults}


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("name", variable_names())
def test_quotes_that_an_env_file_keeps_are_named_for_every_variable(name: str, quote: str) -> None:
    told = faults({name: f"{quote}-- some value{quote}"})
    assert "the quotes are part of the value" in told[name]
    secrets = {one.name for one in declared().values() if one.about.secret}
    assert ("some value" in told[name]) == (name not in secrets)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("ROLLCALL_RESOURCES", """'{"v100": 8}'"""),
        ("ROLLCALL_RESOURCES", """"{"v100": 8}\""""),
        ("NCCL_SOCKET_IFNAME", '"eth0"'),
        ("HF_TOKEN", f"'{SECRET}'"),
        ("CUDA_VISIBLE_DEVICES", '"0,1"'),
    ],
)
def test_quotes_are_named_around_json_and_in_variables_of_the_jobs_libraries(
    name: str, raw: str
) -> None:
    told = faults({name: raw})
    assert "the quotes are part of the value" in told[name]
    assert SECRET not in str(told)


@pytest.mark.parametrize(
    "job", ["'one'", "'a b' --c 'd e'", '"a" "b"', "bash -c 'a | b'", """'{"a": 1}' "b c\""""]
)
def test_quotes_of_a_shell_stay_in_a_job(job: str) -> None:
    assert read_settings({"ROLLCALL_JOB": job, "ROLLCALL_RECIPE": "command"}).job


@pytest.mark.parametrize(
    "key",
    [
        *("your_wandb_api_key_here", "<your-key>", "{token}", "{wandb_token}", "...", "xxxxxxxx"),
        *("YOUR_API_KEY", "$WANDB_API_KEY", "${WANDB_API_KEY}", "changeme", "api_key", "none"),
        *("wandb_api_key", "my-wandb-token", "[your key]", "********", "put_key_here", "WANDB_KEY"),
    ],
)
def test_a_guides_placeholder_is_no_key(key: str) -> None:
    assert "is a guide's placeholder" in faults({"WANDB_API_KEY": key})["WANDB_API_KEY"]
    flag = ["--use_wandb", key]
    if not key.startswith("$"):
        assert "is a guide's placeholder" in faults({}, *flag)["--use_wandb"]
    told = read_settings({"WANDB_API_KEY": SECRET}, flag)
    assert told.wandb_api_key is not None
    assert told.wandb_api_key.reveal() == SECRET


@given(st.text("0123456789abcdef", min_size=40, max_size=40), st.sampled_from(["", "local-"]))
def test_no_real_key_is_taken_for_a_placeholder(digits: str, prefix: str) -> None:
    assert read_settings({"WANDB_API_KEY": prefix + digits}).wandb_api_key is not None


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY"])
@pytest.mark.parametrize(
    "key",
    ["hf_xxx", "hf_" + "x" * 34, "your_hf_token_here", "hf_...", "<hf_token>", "hf_YOUR_TOKEN"],
)
def test_a_placeholder_for_a_librarys_key_is_named(name: str, key: str) -> None:
    assert "is a guide's placeholder" in faults({name: key})[name]


@given(st.text(string.ascii_letters + string.digits, min_size=34, max_size=34))
@example("a1my2your3put4key5token6secret7xxx")
def test_no_real_token_of_the_hub_is_taken_for_a_placeholder(random: str) -> None:
    if len(set(random)) > 8:
        assert read_settings({"HF_TOKEN": f"hf_{random}", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})


@pytest.mark.parametrize("service", ["vllm", "master", "ray", "rollcall-ray"])
def test_what_kubernetes_sets_for_a_service_in_place_of_a_librarys_variable_is_left_out(
    service: str,
) -> None:
    name = service.upper().replace("-", "_")
    host, port = {f"{name}_SERVICE_HOST": "10.0.0.7"}, {f"{name}_PORT": "tcp://10.0.0.7:8000"}
    assert read_settings(host | port).environ == host
    assert f"{name}_PORT" in read_settings(host | {f"{name}_PORT": "8000"}).environ
