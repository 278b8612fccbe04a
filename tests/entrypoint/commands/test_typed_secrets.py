"""No command repeats a secret of what was typed, nor of the script that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.commands import typed_job
from entrypoint.commands.plan import main as plan
from entrypoint.config.read import read_settings
from trainer.config.translate.__main__ import main as translate

CANARY = "canary7x4q9z2w8v"
CLIENT = (
    """ray job submit --runtime-env-json='{"env_vars": {"HF_TOKEN": "CANARY"}, """
    """"pip": ["git+https://me:CANARY@host/x"]}' -- """
)
TRAINER = "torchrun --nproc_per_node 2 train.py --hub_token CANARY"
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --data.prompt_dataset d "
    "--logger.wandb.key CANARY --reward.remote_url http://me:CANARY@host/x --zzz_token=CANARY"
)
SCRIPTS = (
    f"{CLIENT}{TRAINER}",
    f"{CLIENT}{OPENRLHF}",
    f"ray job submit --runtime-env-json='{{env_vars: {{HF_TOKEN: CANARY}}}}' -- {TRAINER}",
    f"export WANDB_API_KEY=CANARY\nHF_TOKEN=CANARY env OPENAI_API_KEYS=CANARY {TRAINER}",
    'curl -H "Authorization: Bearer CANARY" -H "X-Api-Key: CANARY" https://me:CANARY@host\n'
    + TRAINER,
    f"wandb login CANARY\n{OPENRLHF}",
    f"env -u A HF_TOKEN=CANARY conda activate x\n{TRAINER} --header 'Authorization: Token CANARY'",
    'echo "HF_TOKEN: CANARY, https://host/x?sig=CANARY" >&2; exit 3',
    f"HF_TOKEN=CANARY\n{TRAINER} --other $HF_TOKEN $UNSET",
    "trl grpo --config run.yaml --hub_token CANARY",
    "python3 other.py --token CANARY",
    "python3 -m verl.trainer.main_ppo +ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN=CANARY",
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("run.yaml").write_text(f"hub_token: {CANARY}\nlearning_rate: hf_token={CANARY}\n")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("script", SCRIPTS)
def test_plan_repeats_no_secret(
    capsys: pytest.CaptureFixture[str], script: str, *, as_json: bool
) -> None:
    Path("x.sh").write_text(script.replace("CANARY", CANARY))
    try:
        typed = typed_job.read({}, ["bash", "x.sh"])
        settings = read_settings({}, typed.arguments, typed.recipe)
    except ConfigError as error:
        plan(error, as_json)
        print(error)
    else:
        plan(settings, as_json, said=typed.said)
        print(*typed.warnings)
    said = capsys.readouterr()
    assert CANARY not in said.out + said.err


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("script", SCRIPTS)
def test_translate_repeats_no_secret(
    capsys: pytest.CaptureFixture[str], script: str, *, as_json: bool
) -> None:
    Path("x.sh").write_text(script.replace("CANARY", CANARY))
    translate(["x.sh", *(["--json"] if as_json else [])])
    said = capsys.readouterr()
    assert said.out + said.err
    assert CANARY not in said.out + said.err
