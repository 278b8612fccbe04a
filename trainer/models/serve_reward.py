"""`rollcall serve-reward --model DIR`: a reward model over HTTP, with OpenRLHF's protocol.

Requests that come together are scored together: at most --max-batch, or those of --max-wait-ms.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from contract.exit_codes import ExitCode
from env import model_code
from env.http.arguments import positive
from env.http.serving import log_to_stderr
from env.server import fail, new_parser, serve
from trainer.config import model_files, reward_models


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("rollcall serve-reward", __doc__)
    option = parser.add_argument
    option("--model", required=True, help="a reward model: a directory, or a name on the hub")
    option("--dtype", choices=("bf16", "fp32"), help="bf16 on a GPU, fp32 on a CPU if not given")
    option("--micro-batch", type=positive, default=64, help="samples of one forward pass")
    option("--value-head-prefix", default="score", help="name of the head in OpenRLHF's models")
    model_code.add_flag(option)
    option("--attention", help="attention of transformers, such as flash_attention_2")
    arguments = parser.parse_args(argv)
    log_to_stderr()
    # Imported only after the flags are valid, so that --help and a typing error answer at once.
    from trainer.models.hub import HubError, HubUnreachableError, fetch, is_name
    from trainer.models.loading import prepare_process
    from trainer.models.pretrained import code_that_runs
    from trainer.models.reward_model import ScalarRewardModel
    from trainer.models.settings import RewardSettings
    from trainer.types import TrainingError

    model = arguments.model
    if not is_name(model) and not (Path(model) / "config.json").is_file():
        return fail(os.EX_USAGE, f"--model {model}: no model there (no config.json)")
    device = prepare_process(trust_remote_code=arguments.trust_remote_code)
    try:
        directory = fetch(model) if is_name(model) else model
        trusts = arguments.trust_remote_code
        if faults := list(_faults(Path(directory), trusted=trusts)):
            return fail(os.EX_USAGE, "\n".join(faults))
        if trusts and (said := code_that_runs([directory])):
            logging.info(said)
        settings = RewardSettings(
            models=(directory,),
            mixed_precision=(arguments.dtype or ("fp32" if device.type == "cpu" else "bf16"))
            == "bf16",
            micro_batch_size=arguments.micro_batch,
            attention=arguments.attention,
            value_head_prefix=arguments.value_head_prefix,
        )
        reward = ScalarRewardModel(directory, settings, device)
    except HubUnreachableError as error:
        return fail(ExitCode.UNREACHABLE, str(error))
    except (HubError, TrainingError, ValueError, ImportError) as error:
        return fail(os.EX_USAGE, f"--model {model}: {error}")
    return serve(model, reward.score, arguments)


def _faults(model: Path, *, trusted: bool) -> Iterator[str]:
    """Yield what is wrong with the files of a model, which may come from the hub."""
    for fault in (
        *model_files.faults(model, tokenizer=True),
        *model_files.code_faults(model, trusted=trusted),
    ):
        yield f"--model: {fault}"
    yield from map(str, reward_models.faults_of("--model", model, chat=False))


if __name__ == "__main__":
    sys.exit(main())
