"""What a job may ask of Ray's runtime environment, in Ray's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError, ParseError
from entrypoint.config.read import read_settings
from entrypoint.config.runtime_env import parsed


def test_json_and_yaml_say_the_same() -> None:
    row = {"pip": ["einops"], "env_vars": {"LEVEL": "2"}, "excludes": ["/data/"]}
    assert parsed('{"pip": ["einops"], "env_vars": {"LEVEL": "2"}, "excludes": ["/data/"]}') == row
    assert parsed("pip: [einops]\nenv_vars: {LEVEL: '2'}\nexcludes:\n  - /data/\n") == row


def test_the_file_of_verls_guide_is_read_as_it_is() -> None:
    text = (
        'working_dir: ./\nexcludes: ["/.git/"]\n'
        'env_vars:\n  TORCH_NCCL_AVOID_RECORD_STREAMS: "1"\npip:\n  - "peft"\n'
    )
    assert parsed(text) == {
        "working_dir": "./",
        "excludes": ["/.git/"],
        "env_vars": {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
        "pip": ["peft"],
    }


def test_a_file_of_requirements_is_read_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("einops\ndatasets==5.2.0\n")
    assert parsed("pip: requirements.txt", tmp_path) == {"pip": ["einops", "datasets==5.2.0"]}
    with pytest.raises(ParseError, match="cannot be read"):
        parsed("pip: other.txt", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "is not an object of fields"),
        ("pip: [", "is not YAML in line 1"),
        ('{"workingdir": "."}', "no field workingdir: did you mean working_dir?"),
        ('{"env_vars": {"LEVEL": 2}}', "env_vars is not an object of texts"),
        ('{"env_vars": {"RAY_AUTH_TOKEN": "x"}}', "env_vars sets RAY_AUTH_TOKEN, which Rollcall"),
        ('{"env_vars": {"ROLLCALL_ATTEMPT": "1"}}', "leave it out"),
        ('{"excludes": "/data"}', "excludes is not a list of patterns"),
        ('{"pip": "einops"}', "pip is neither a list nor an object"),
        ('{"pip": ["a"], "uv": ["a"]}', "has pip and uv: give one of the two"),
        ('{"working_dir": 1}', "working_dir is not text"),
        ('{"py_modules": ["./mine"]}', "put modules of your own into working_dir"),
    ],
)
def test_a_wrong_environment_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(ParseError) as caught:
        parsed(text)
    assert said in str(caught.value)


def test_a_variable_gives_the_environment_of_the_heads_own_command(tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text("pip: [einops]\n")
    given = {"ROLLCALL_RECIPE": "command", "ROLLCALL_RUNTIME_ENV_FILE": str(file)}
    assert read_settings(given, ["python"]).runtime_env == {"pip": ["einops"]}


@pytest.mark.parametrize(
    ("environ", "job", "said"),
    [
        (
            {"ROLLCALL_RUNTIME_ENV": '{"env_vars": {"API_KEY": 12345}}'},
            (),
            "is wrong: env_vars is not an object of texts",
        ),
        (
            {"ROLLCALL_RUNTIME_ENV": '{"pip": ["a"]}'},
            (),
            "is set, and the recipe is builtin, which takes none",
        ),
        (
            {"ROLLCALL_RUNTIME_ENV": '{"pip": ["a"]}', "ROLLCALL_WAIT_FOR_JOBS": "1"},
            (),
            "is set, and the cluster waits for jobs, each of which has its own",
        ),
        (
            {"ROLLCALL_WAIT_FOR_JOBS": "1"},
            ("--pretrain", "m"),
            "waits for jobs, and the command line has",
        ),
        (
            {"ROLLCALL_WAIT_FOR_JOBS": "1", "ROLLCALL_JOB": "a"},
            (),
            "waits for jobs, and ROLLCALL_JOB has",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    environ: dict[str, str], job: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(environ, job)
    assert said in str(caught.value)
