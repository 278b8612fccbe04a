"""Scripts with a Trainer are told from others by their source."""

from __future__ import annotations

import pytest

from entrypoint.job.recipes.trl.own_script import Arguments, arguments_of

SCRIPTS = {
    "of TRL's first page": (
        """
from datasets import load_dataset
from trl import SFTTrainer
trainer = SFTTrainer(model="m", train_dataset=load_dataset("d"))
trainer.train()
""",
        Arguments.OF_CODE,
    ),
    "with the module": ("import trl\ntrl.GRPOTrainer(model='m').train()", Arguments.OF_CODE),
    "of a submodule": (
        "import transformers.trainer as t\nt.Trainer().train(True)",
        Arguments.OF_CODE,
    ),
    "of a class of its own": (
        """
from transformers import Trainer
class Mine(Trainer):
    pass
def main():
    Mine().train()
""",
        Arguments.OF_CODE,
    ),
    "whose flags are only its own": (
        """
from transformers import HfArgumentParser, Trainer, TrainingArguments
class Own:
    rate: float
own = HfArgumentParser(Own).parse_args_into_dataclasses()[0]
Trainer(args=TrainingArguments("out", learning_rate=own.rate)).train()
""",
        Arguments.OF_CODE,
    ),
    "whose flags are the Trainer's": (
        """
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser
parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
SFTTrainer().train()
""",
        Arguments.OF_FLAGS,
    ),
    "whose flags are in a variable": (
        """
import trl
classes = (trl.ScriptArguments, trl.GRPOConfig)
trl.TrlParser(dataclass_types=classes)
trl.GRPOTrainer().train()
""",
        Arguments.OF_FLAGS,
    ),
    "whose flags are of a class of its own": (
        """
from transformers import HfArgumentParser, Trainer, TrainingArguments
class Mine(TrainingArguments):
    extra: int = 1
HfArgumentParser([Mine])
Trainer().train()
""",
        Arguments.OF_FLAGS,
    ),
    "that starts its own ranks": (
        """
from accelerate import notebook_launcher
from trl import SFTTrainer
notebook_launcher(lambda: SFTTrainer().train())
""",
        Arguments.NO_TRAINER,
    ),
    "that is a driver of Ray": (
        """
from ray.train.torch import TorchTrainer
def on_each_worker():
    from transformers import Trainer
    Trainer().train()
TorchTrainer(on_each_worker).fit()
""",
        Arguments.NO_TRAINER,
    ),
    "that does not train": (
        "from transformers import Trainer\nTrainer().evaluate()",
        Arguments.NO_TRAINER,
    ),
    "with another Trainer": (
        "from lightning import Trainer\nTrainer().train()",
        Arguments.NO_TRAINER,
    ),
    "of torch": ("import torch\nmodel.train()", Arguments.NO_TRAINER),
    "with a model of transformers": (
        "from transformers import AutoModel\nAutoModel.from_pretrained('m').train()",
        Arguments.NO_TRAINER,
    ),
    "that is no Python": ("from trl import (", Arguments.NO_TRAINER),
    "with a null byte": ("\0", Arguments.NO_TRAINER),
    "that is empty": ("", Arguments.NO_TRAINER),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_where_the_arguments_of_a_script_come_from(name: str) -> None:
    source, expected = SCRIPTS[name]
    assert arguments_of(source) is expected
