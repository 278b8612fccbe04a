"""Compiles the fused kernels for GPUs that need not be here: compute capabilities are in argv.

Prints as JSON whether each kernel was compiled for its GPU.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trainer.models import fused_log_probs

POINTERS = {"places": "*i64", "gradient": "*bf16"}
NUMBERS = {"stride": "i32", "gradient_stride": "i32", "width": "i32", "factor": "fp32"}


def compiled(kernel: Any, capability: int) -> str:
    """Return the kernel's PTX, which the assembler accepted."""
    names = kernel.arg_names
    fixed = {"entropy": True, "size": 2048}
    signature = {name: POINTERS.get(name, NUMBERS.get(name, "*fp32")) for name in names}
    signature |= dict.fromkeys(fixed, "constexpr")
    constants = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(kernel, signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]
    return str(made.asm["ptx"])


if __name__ == "__main__":
    kernels = (fused_log_probs._add_block, fused_log_probs._gradient_of_block)
    found = {
        f"{kernel.__name__} {capability}": f".target sm_{capability}"
        in compiled(kernel, capability)
        for kernel in kernels
        for capability in map(int, sys.argv[1:])
    }
    print(json.dumps(found))
