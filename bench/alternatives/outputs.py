"""CPU ms of a decode step in vLLM's output processor, without a model.

The alternative is vLLM's default for a stream: an output for each request and step
(`RequestOutputKind.DELTA`). The trainer's engine asks for one output a request (`FINAL_ONLY`).
`encode` and `decode` are what another process for vLLM's core would cost: msgpack encodes in the
core's process what the core says of a step, and decodes it in the engine's. A row has the numbers
of 128, 256 and 512 requests; the value is of the last. `python -m bench.rollout_gpu` has the CPU
time of whole steps.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

from bench.alternatives.row import Row
from trainer.models.loading import prepare_process

REQUESTS, STEPS, PROMPT = (128, 256, 512), 100, 256
KINDS = ("DELTA", "FINAL_ONLY")


def measured() -> Row:
    if find_spec("vllm") is None:
        return Row(unit="ms", alternative=0, ours=0, lacking="vLLM")
    prepare_process()
    rows = {str(count): of_requests(count) for count in REQUESTS}
    last = rows[str(REQUESTS[-1])]
    return Row(
        unit="ms",
        alternative=last["DELTA"],
        ours=last["FINAL_ONLY"],
        detail={"steps": STEPS, "prompt": PROMPT, "requests": rows},
    )


def of_requests(count: int) -> dict[str, float]:
    """Return the CPU ms of a step by kind of output, and of its message between processes."""
    steps = [step_of(count, number) for number in range(STEPS)]
    sent(steps[:1])  # imports
    size, message = sent(steps)
    seconds = {kind: processed(kind, steps)[1] for kind in KINDS} | message
    found = {name: round(1_000 * whole / STEPS, 3) for name, whole in seconds.items()}
    return found | {"message_bytes": size // STEPS}


def step_of(count: int, number: int) -> Any:
    """Return what vLLM's core says of the step `number`: a token of each request."""
    import numpy as np
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.outputs import LogprobsLists

    tokens = np.random.default_rng(number).integers(0, 150_000, (count, 1), dtype=np.int32)
    sampled = LogprobsLists(
        tokens, np.full((count, 1), -1, dtype=np.float32), np.ones(count, dtype=np.int32)
    )
    reason = FinishReason.LENGTH if number == STEPS - 1 else None
    return EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(
                request_id=f"{count}-{index}",
                new_token_ids=tokens[index].tolist(),
                new_logprobs=sampled.slice_request(index, 1),
                finish_reason=reason,
            )
            for index in range(count)
        ]
    )


def processed(kind: str, steps: list[Any]) -> tuple[int, float]:
    """Process the steps. Return the number of outputs that were built, and seconds of CPU time."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor

    processor = OutputProcessor(None, log_stats=False)
    params = SamplingParams(
        max_tokens=len(steps), logprobs=0, flat_logprobs=True, detokenize=False,
        output_kind=RequestOutputKind[kind],
    )  # fmt: skip
    for output in steps[0].outputs:
        name = output.request_id
        request = EngineCoreRequest(
            name, [1] * PROMPT, None, params, None, 0.0, None, None, None, external_req_id=name
        )
        processor.add_request(request, None)
    built, began = 0, time.thread_time()
    for step in steps:
        built += len(processor.process_outputs(step.outputs).request_outputs)
    return built, time.thread_time() - began


def sent(steps: list[Any]) -> tuple[int, dict[str, float]]:
    """Encode and decode the steps' messages as vLLM does between processes.

    Returns the bytes of all, and seconds of CPU time to encode and to decode them.
    """
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreOutputs)
    size, seconds = 0, {"encode": 0.0, "decode": 0.0}
    for step in steps:
        began = time.thread_time()
        parts = encoder.encode_into(step, bytearray())
        encoded = time.thread_time()
        found = decoder.decode(parts)
        seconds["encode"] += encoded - began
        seconds["decode"] += time.thread_time() - encoded
        assert len(found.outputs) == len(step.outputs)
        size += sum(memoryview(part).nbytes for part in parts)
    return size, seconds
