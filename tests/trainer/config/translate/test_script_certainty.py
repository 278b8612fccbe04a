"""`rollcall translate` prints a script's value only if it certainly reaches TRL's trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.translate import flags, run

HEAD = """\
import argparse, dataclasses, torch
from dataclasses import dataclass, field
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser
parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
parser.add_argument("--size", default="small")
parser.add_argument("--beta", type=float, default=0.1)
parser.add_argument("--temperature", type=float, default=0.7)
args = parser.parse_args()
"""
CONFIG = 'config = GRPOConfig(output_dir="o", num_generations=4, learning_rate=1e-5, beta=0.2)\n'
END = """
trainer = GRPOTrainer("m/m", "r/m", config, load_dataset("d/x"))
{}
trainer.train()
"""
RATE, KL = "--actor_learning_rate", "--init_kl_coef"


def translated(
    capsys: pytest.CaptureFixture[str], script: Path, text: str, *typed: str
) -> tuple[int, dict[str, str | None], str]:
    """Return the exit code, the values that tests look at, and what is said."""
    script.write_text(text)
    code, out, err = run(capsys, "--", "torchrun", "--nproc_per_node=1", str(script), *typed)
    made = {name: " ".join(texts) for name, texts in flags(out).items()}
    return code, {name: made.get(name) for name in (RATE, KL)}, err


@pytest.mark.parametrize(
    ("body", "typed", "expected"),
    [
        (CONFIG + "if args.debug:\n    config.learning_rate = 1e-3\n", "", "1e-05 0.2"),
        (CONFIG + "if args.debug:\n    config.learning_rate = 1e-3\n", "--debug", "0.001 0.2"),
        (CONFIG + "if not args.debug and args.size == 'big':\n    config.beta = 9\n", "",
         "1e-05 0.2"),
        (CONFIG + "def change(it):\n    it.beta = 0.4\nchange(config)\n", "", "1e-05 0.4"),
        (CONFIG + "other = config\nother.beta = 0.4\n", "", "1e-05 0.4"),
        (CONFIG + "setattr(config, 'beta', 0.4)\n", "", "1e-05 0.4"),
        (CONFIG + "vars(config)['beta'] = 0.4\n", "", "1e-05 0.4"),
        ("own = {'lr': 1e-4}\n" + CONFIG.replace("1e-5", "own['lr'] * 2"), "", "0.0002 0.2"),
        ("try:\n    import trl\nexcept ImportError:\n    GRPOConfig = None\n" + CONFIG, "",
         "1e-05 0.2"),
        (CONFIG + "print(config)\nwith open('x'):\n    config.beta = 0.4\n", "", "1e-05 0.4"),
        (CONFIG.replace("1e-5", "args.beta / 2") + "", "--beta 4", "2.0 0.2"),
        (CONFIG, "--temperature 0.3 --size big", "1e-05 0.2"),
        ("if args.size == 'small':\n    lr = 1e-4\nelse:\n    lr = 1e-6\n"
         + CONFIG.replace("1e-5", "lr"), "", "0.0001 0.2"),
        ("lr = 1e-5\nlr = lr * 2\n" + CONFIG.replace("1e-5", "lr") + "lr = 3\n", "", "2e-05 0.2"),
        (CONFIG.replace("1e-5", "1e-3 if args.debug else 1e-4"), "", "0.0001 0.2"),
    ],
)  # fmt: skip
def test_what_the_script_s_options_and_constants_decide_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str, typed: str, expected: str
) -> None:
    text = HEAD + body + END.format("")
    code, made, err = translated(capsys, tmp_path / "train.py", text, *typed.split())
    assert " ".join(map(str, made.values())) == expected, err
    own = [one for one in ("--temperature", "--size") if one in typed]
    assert code == (1 if own else 0), err
    assert all(f"{one[2:]}=" in err and "an option of the script's own" in err for one in own)
    assert "debug=" not in err


@pytest.mark.parametrize(
    ("body", "later", "expected", "said"),
    [
        (CONFIG + "if torch.cuda.is_available():\n    config.beta = 0.5\n", "", "1e-05 None",
         "line 12: config.beta = 0.5, only if torch.cuda.is_available(), is not taken over: give"),
        (CONFIG + "for one in things():\n    config.beta = 0.5\n", "", "1e-05 None", "in a loop"),
        (CONFIG + "try:\n    config.beta = 0.5\nexcept OSError:\n    pass\n", "", "1e-05 None",
         "line 12: config.beta = 0.5, which may not run"),
        (CONFIG + "def hook():\n    config.beta = 0.5\nregister(hook)\n", "", "1e-05 None",
         "line 12: config.beta = 0.5, in hook(), which may not run"),
        (CONFIG + "config.beta *= 2\n", "", "1e-05 None", "line 11: config.beta is not taken"),
        (CONFIG + "setattr(config, name, 2)\n", "", "1e-05 0.2", "which may change any argument"),
        (CONFIG + "config.set_training(learning_rate=1)\n", "", "1e-05 0.2",
         "line 11: config.set_training(learning_rate=1), which may change any argument"),
        (CONFIG + "tune(config)\n", "", "1e-05 0.2", "line 11: tune(config), which may change"),
        (CONFIG + "vars(config).update(own)\n", "", "1e-05 0.2", "which may change any argument"),
        ("own = {'lr': 1e-4}\nown['lr'] = 3\n" + CONFIG.replace("1e-5", "own['lr']"), "",
         "None 0.2", "learning_rate=own['lr'] is not taken over"),
        ("own = {'a': {'lr': 1e-4}}\nof = own['a']\nof['lr'] = 3\n"
         + CONFIG.replace("1e-5", "own['a']['lr']"), "", "None 0.2", "learning_rate=own['a']['l"),
        ("for _ in own():\n    it = it['a']\n" + CONFIG.replace("1e-5", "it['lr']"), "",
         "None 0.2", "learning_rate=it['lr'] is not taken over"),
        (CONFIG + "vars(config)[name] = 0.4\n", "", "1e-05 0.2", "which may change any argument"),
        (CONFIG + "vars(config)['beta'] *= 2\n", "", "1e-05 None", "line 11: vars(config)['beta']"),
        (CONFIG + "GRPOTrainer.compute_loss = own\n", "", "1e-05 0.2",
         "line 11: GRPOTrainer.compute_loss is not taken over: it replaces a part of TRL"),
        (CONFIG + "setattr(GRPOTrainer, 'log', own)\n", "", "1e-05 0.2",
         "line 11: setattr(GRPOTrainer, 'log', own) is not taken over: it replaces a part"),
        (CONFIG + "GRPOTrainer = own(GRPOTrainer)\n", "", "1e-05 0.2",
         "line 11: GRPOTrainer = own(GRPOTrainer) is not taken over: it replaces a part of TRL"),
        ("GRPOConfig = partial(GRPOConfig, beta=3)\n" + CONFIG.replace(", beta=0.2", ""), "",
         "1e-05 None", "line 10: GRPOConfig = partial(GRPOConfig, beta=3) is not taken over"),
        ("GRPOConfig = own(GRPOConfig)\n" + CONFIG, "", "1e-05 0.2",
         "line 10: GRPOConfig = own(GRPOConfig) is not taken over: give what it sets"),
        (CONFIG + "config = dataclasses.replace(config, beta=0.5)\n", "", "1e-05 None",
         "line 11: dataclasses.replace(config, beta=0.5) is not taken over"),
        (CONFIG, "trainer.args.learning_rate = 1", "None 0.2", "line 13: trainer.args.learning_ra"),
        (CONFIG, "trainer.beta = 1", "1e-05 None", "line 13: trainer.beta, set once the trainer"),
        (CONFIG, "setattr(trainer, 'beta', 1)", "1e-05 None", "line 13: setattr(trainer, 'beta'"),
        (CONFIG, "config.learning_rate = 1", "None 0.2", "line 13: config.learning_rate = 1"),
        (CONFIG, "trainer.train()", "1e-05 0.2", "line 13, 14: to train more than once"),
        (CONFIG + "second = " + CONFIG.partition(" = ")[2].replace("0.2", "0.4")
         + "config = pick(config, second)\n", "", "1e-05 None", "beta=0.2 or 0.4 is not taken"),
        ("lr = 1e-5\nif torch.cuda.is_available():\n    lr = 1e-6\n"
         + CONFIG.replace("1e-5", "lr"), "", "None 0.2", "learning_rate=lr is not taken over"),
        ("def f(lr=2e-5):\n    return lr\nlr = f()\n" + CONFIG.replace("1e-5", "lr"), "",
         "None 0.2", "learning_rate=lr is not taken over"),
        ("from own import lr\n" + CONFIG.replace("1e-5", "lr"), "", "None 0.2",
         "learning_rate=lr is not taken over"),
        ("config = GRPOConfig()\nif torch.cuda.is_available():\n    " + CONFIG, "", "None None",
         "of which only a run tells the right one"),
        ("config = None\nif torch.cuda.is_available():\n    " + CONFIG, "", "None None",
         "line 12: GRPOConfig(learning_rate=1e-05), only if torch.cuda.is_available(), is not"),
        ("lr = 1e-5\nfrom own import *\n" + CONFIG.replace("1e-5", "lr"), "", "None 0.2",
         "learning_rate=lr is not taken over"),
        ("lr = 1e-5\nexec(open('own.py').read())\n" + CONFIG.replace("1e-5", "lr"), "",
         "None 0.2", "learning_rate=lr is not taken over"),
        (CONFIG + "def again():\n    global config\n    config = other()\nagain()\n", "",
         "1e-05 0.2", "line 13: another value of args=config is not taken over"),
        ("own = dict(beta=0.2)\nother = own\nother['beta'] = 3\n"
         + CONFIG.replace("beta=0.2", "**own"), "", "1e-05 0.0", "GRPOConfig(**own) is not taken"),
        ("own = dict(beta=0.2)\nchange(own)\n" + CONFIG.replace("beta=0.2", "**own"), "",
         "1e-05 0.0", "GRPOConfig(**own) is not taken"),
        ("own = {'beta': 0.2, **more()}\n" + CONFIG.replace("beta=0.2", "**own"), "",
         "1e-05 0.0", "GRPOConfig(**more()) is not taken"),
        (CONFIG + "parser.config.beta = 3\n", "", "1e-05 None", "which may be the config's"),
        (CONFIG.replace("0.2", "args.beta") + "vars(args)['beta'] = 3\n", "", "1e-05 None",
         "beta=args.beta is not taken over"),
        ("from own import settle\nsettle(args)\n" + CONFIG.replace("0.2", "args.beta"), "",
         "1e-05 None", "beta=args.beta is not taken over"),
        (CONFIG.replace("beta=0.2", "**overrides"), "", "1e-05 0.0",
         "GRPOConfig(**overrides) is not taken over"),
    ],
)  # fmt: skip
def test_what_only_a_run_decides_is_named_and_not_printed(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    body: str,
    later: str,
    expected: str,
    said: str,
) -> None:
    text = HEAD + body + END.format(later)
    code, made, err = translated(capsys, tmp_path / "train.py", text)
    assert (code, " ".join(map(str, made.values()))) == (1, expected), err
    assert said in err


OWN = """\
from dataclasses import dataclass, field
from trl import GRPOConfig, GRPOTrainer, TrlParser

RATE = 3e-5
@dataclass
class Base(GRPOConfig):
    learning_rate: float = field(default=5e-5, metadata={"help": "of the user"})
    beta: float = field(default_factory=lambda: 0.3)

@dataclass
class MyConfig(Base):
    learning_rate: float = RATE
"""
CALLED = 'config = MyConfig("o")\n'
FILLED = "(config,) = TrlParser((MyConfig,)).parse_args_and_config()\n"
AFTER = """
    def __post_init__(self):
        super().__post_init__()
        {}
"""


@pytest.mark.parametrize("made", [CALLED, FILLED])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("after", "typed", "expected", "said"),
    [
        ("", "", "3e-05 0.3", ""),
        ("", "--beta 0.6", "3e-05 0.6", ""),
        ("self.beta = 0.7", "--beta 0.6", "3e-05 0.7", ""),
        ("if self.beta: self.beta = 0.7", "", "3e-05 None", "MyConfig.__post_init__ sets beta"),
        ("adapt(self)", "", "3e-05 0.3", "MyConfig.__post_init__ sets attributes"),
    ],
)
def test_the_defaults_of_a_class_of_the_user_s_are_read(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    made: str,
    apart: bool,
    after: str,
    typed: str,
    expected: str,
    said: str,
) -> None:
    own = OWN + (AFTER.format(after) if after else "")
    if apart:
        (tmp_path / "configs.py").write_text(own)
        own = "from trl import GRPOTrainer, TrlParser\nfrom configs import MyConfig\n"
    text = own + made + END.format("")
    code, values, err = translated(capsys, tmp_path / "train.py", text, *typed.split())
    assert " ".join(map(str, values.values())) == expected, err
    assert (code, said in err) == (1 if said else 0, True), err
    if apart:
        (tmp_path / "configs.py").unlink()
        code, values, err = translated(capsys, tmp_path / "train.py", text)
        assert code == 1
        assert "MyConfig" in err


def test_a_class_without_dataclass_gives_no_default(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = OWN.replace("@dataclass\nclass MyConfig", "class MyConfig") + CALLED + END.format("")
    code, values, err = translated(capsys, tmp_path / "train.py", text)
    assert (code, values) == (1, {RATE: None, KL: "0.3"}), err
    assert "the default MyConfig.learning_rate is not taken over" in err


RUNNER = """
class Runner:
    def __init__(self):
        self.config = GRPOConfig("o", learning_rate=1e-5, beta=0.2)
        {}
    def run(self):
        GRPOTrainer("m/m", "r/m", self.config, load_dataset("d/x")).train()
Runner().run()
"""


@pytest.mark.parametrize(
    ("line", "expected"), [("self.seed = 3", "0.2"), ("self.config.beta = 0.4", None)]
)
def test_a_change_in_an_object_of_the_script_s_is_seen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, expected: str | None
) -> None:
    code, values, err = translated(capsys, tmp_path / "train.py", HEAD + RUNNER.format(line))
    assert (code, values[KL]) == (0 if expected else 1, expected), err
    assert ("self.config.beta = 0.4" in err) == (expected is None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("parser.set_defaults(beta=0.4)", "parser.set_defaults(beta=0.4) is not taken over"),
        ("parser.parse_args_and_config(args=['--beta', '4'])", "parse_args_and_config(args="),
    ],
)
def test_flags_that_the_script_gives_itself_by_trl_s_parser_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, said: str
) -> None:
    text = "from trl import GRPOConfig, GRPOTrainer, TrlParser\nparser = TrlParser(GRPOConfig)\n"
    text += f"{line}\n(config,) = parser.parse_args_and_config()\n" + END.format("")
    code, _, err = translated(capsys, tmp_path / "train.py", text)
    assert (code, said in err) == (1, True), err


@pytest.mark.parametrize(
    ("made", "passed", "rank", "modules"),
    [
        ("LoraConfig(r=4)", "peft_config=lora", "4", "q_proj v_proj"),
        ("LoraConfig(r=4, target_modules=['k_proj'])", "peft_config=lora", "4", "k_proj"),
        ("None\nm = FastLanguageModel.get_peft_model(m, r=4)\nprint(m)", "", "4",
         "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"),
        ("None\nm = FastModel.get_peft_model(m, r=4)\nprint(m) # cuda", "", "4", None),
        ("LoraConfig(r=4)\nm = get_peft_model(m, lora, adapter_name='a')", "", "4",
         "q_proj v_proj"),
        ("LoraConfig(r=4) if args.debug else None", "peft_config=lora", None, None),
        ("LoraConfig(r=4) if cuda() else None", "peft_config=lora", None, None),
        ("LoraConfig(r=4)", "peft_config=lora if cuda() else LoraConfig(r=8)", None, None),
        ("LoraConfig(r=4)", "", None, None),
        ("LoraConfig(r=4)\nlora.r = 8 # cuda", "peft_config=lora", None, "q_proj v_proj"),
    ],
)  # fmt: skip
def test_an_adapter_counts_if_the_trainer_gets_it(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    made: str,
    passed: str,
    rank: str | None,
    modules: str | None,
) -> None:
    script = tmp_path / "train.py"
    text = f"from peft import LoraConfig\n{HEAD}{CONFIG}lora = {made}\n" + END.format("")
    text = text.replace('"m/m"', '"Qwen/Qwen2.5-0.5B"')
    script.write_text(text.replace('load_dataset("d/x")', f'load_dataset("d/x"), {passed}'))
    code, out, err = run(capsys, str(script))
    ours = flags(out)
    assert ours.get("--lora_rank", [None]) == [rank], err
    assert " ".join(ours.get("--target_modules", [])) == (modules or ""), err
    assert code == (1 if "cuda" in made + passed else 0), err


@pytest.mark.parametrize(
    ("model", "is_known"),
    [
        ("Qwen/Qwen3-4B-Instruct-2507", True),
        ("meta-llama/Llama-3.2-1B-Instruct", True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", True),
        ("models/gemma-2-2b-it/", True),
        ("meta-llama/Llama-3.2-11B-Vision", False),
        ("Qwen/Qwen3-30B-A3B", False),
        ("Qwen/Qwen2.5-VL-3B-Instruct", False),
        ("own/model", False),
    ],
)
def test_modules_that_peft_chooses_by_the_model_are_printed_or_asked_for(
    capsys: pytest.CaptureFixture[str], model: str, is_known: bool
) -> None:
    typed = f"trl grpo --model_name_or_path {model} --dataset_name o/d --use_peft"
    code, out, err = run(capsys, "--", *typed.split(), "--reward_funcs", "accuracy_reward")
    assert flags(out).get("--target_modules") == (["q_proj", "v_proj"] if is_known else None)
    asked = "use_peft=true: without lora_target_modules, PEFT adapts modules that it has for"
    assert (code, asked in err) == (0 if is_known else 1, not is_known), err


SPLIT_OF_RUN = "its split is not taken over: give it by --prompt_split"


@pytest.mark.parametrize(
    ("body", "passed", "split"),
    [
        ("ds = load_dataset('a/b')", "ds['test']", "test"),
        ("ds = load_dataset('a/b')['test'].shuffle(seed=1)", "ds", "test"),
        ("", "load_dataset('a/b', 'main')['validation']", "validation"),
        ("", "load_dataset('a/b', None, None, None, 'test')", "test"),
        ("split = 'test'\nds = load_dataset('a/b')", "ds[split]", "test"),
        ("ds = load_dataset('a/b')\nds['test'] = own(ds['test'])", "ds['test']", "test"),
        ("ds = load_dataset('a/b')", "ds['train'], eval_dataset=ds['test']", "train"),
        ("ds = load_dataset('a/b')", "ds", None),
        ("ds = load_dataset('a/b')", "ds[own.dataset_train_split]", None),
        ("split = own()\nds = load_dataset('a/b')", "ds[split]", ""),
        ("ds = load_dataset('a/b')\ndef take(rows): return rows['test']", "take(ds)", ""),
        ("ds = load_dataset('a/b')", "own(ds['test'])", ""),
        ("it.ds = load_dataset('a/b')", "it.ds['test']", ""),
    ],
)
def test_the_split_is_the_one_that_the_trainer_gets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str, passed: str, split: str | None
) -> None:
    script = tmp_path / "train.py"
    trained = f'GRPOTrainer("m/m", "r/m", config, train_dataset={passed}).train()\n'
    script.write_text(f"from datasets import load_dataset\n{HEAD}{CONFIG}{body}\n{trained}")
    code, out, err = run(capsys, str(script))
    assert flags(out).get("--prompt_split") == ([split] if split else None), err
    assert (code, SPLIT_OF_RUN in err) == (1 if split == "" else 0, split == ""), err


@pytest.mark.parametrize(
    ("line", "typed", "project"),
    [
        ("", "", "huggingface"),
        ("", "WANDB_PROJECT=mine", "mine"),
        ("os.environ['WANDB_PROJECT'] = 'own'", "WANDB_PROJECT=mine", "own"),
        ("os.environ.setdefault('WANDB_PROJECT', 'own')", "WANDB_PROJECT=mine", "mine"),
        ("os.environ.setdefault('WANDB_PROJECT', 'own')", "", "own"),
        ("os.environ.update(WANDB_PROJECT='own')", "", "own"),
        ("wandb.init(project='own')", "", "own"),
        ("os.environ['WANDB_PROJECT'] = name()", "", None),
        ("if name(): os.environ['WANDB_PROJECT'] = 'own'", "", None),
    ],
)
def test_the_project_of_wandb_is_the_variable_s(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, typed: str, project: str | None
) -> None:
    script = tmp_path / "train.py"
    config = CONFIG.replace("beta=0.2", "report_to='wandb', project='trackio_s'")
    script.write_text(f"{HEAD}{line}\n{config}" + END.format(""))
    code, out, err = run(capsys, "--", *typed.split(), "python", str(script))
    assert flags(out).get("--wandb_project", [None]) == [project], err
    assert (code, "give --wandb_project" in err) == (0 if project else 1, project is None), err


def test_a_data_set_and_a_config_that_a_run_may_not_use_do_not_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    text = HEAD + CONFIG + "rows = load_dataset('d/x') if cuda() else None\n"
    script.write_text(text + 'GRPOTrainer("m/m", "r/m", train_dataset=rows).train()\n')
    code, out, err = run(capsys, str(script))
    made = flags(out)
    assert (code, made.get("--prompt_data"), RATE in made, made[KL]) == (1, None, False, ["0.0"])
    assert "load_dataset('d/x'), which a run may not use" in err


def test_a_config_file_of_the_script_s_own_is_no_file_of_trl_s(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text("beta: 0.7\n")
    text = HEAD.replace("\nargs", '\nparser.add_argument("--config")\nargs') + CONFIG
    typed = ("--config", str(tmp_path / "own.yaml"))
    code, values, err = translated(capsys, tmp_path / "train.py", text + END.format(""), *typed)
    assert (code, values[KL]) == (1, "0.2"), err
    assert f"config={typed[1]}: an option of the script's own" in err


@pytest.mark.parametrize(
    "line", ["for name in own: parser.add_argument(f'--{name}')", "add(parser)"]
)
def test_options_that_are_not_written_in_the_script_are_no_flags_of_trl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    text = HEAD.replace("\nargs", f"\n{line}\nargs") + CONFIG + END.format("")
    code, values, err = translated(capsys, tmp_path / "train.py", text, "--learning_rate", "9")
    assert (code, values) == (1, {RATE: "1e-05", KL: "0.2"}), err
    assert "learning_rate=9: an option of the script's own" in err


@pytest.mark.parametrize("package", ["click", "typer", "fire"])
def test_options_that_another_package_reads_are_no_flags_of_trl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, package: str
) -> None:
    text = f"import {package}\nfrom trl import GRPOConfig, GRPOTrainer\n" + CONFIG + END.format("")
    code, values, err = translated(capsys, tmp_path / "train.py", text, "--beta", "9")
    assert (code, values) == (1, {RATE: "1e-05", KL: "0.2"}), err
    assert "beta=9: an option of the script's own" in err


def test_a_flag_that_the_script_overrules_does_not_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = "(config,) = TrlParser((GRPOConfig,)).parse_args_and_config()\nconfig.beta = 0.3\n"
    text = f"from trl import GRPOConfig, GRPOTrainer, TrlParser\n{made}" + END.format("")
    flagged = ("--beta", "9", "--learning_rate", "2e-6")
    code, values, err = translated(capsys, tmp_path / "train.py", text, *flagged)
    assert (code, values) == (0, {RATE: "2e-6", KL: "0.3"}), err


@pytest.mark.parametrize(
    ("option", "typed", "expected"),
    [
        ("type=rate, default=1e-6", "--lr 3", None),
        ("type=rate, default='1'", "", None),
        ("type=float, default=1e-6", "--l 3e-6", "3e-06"),
        ("type=float, default=1e-6", "-r 3e-6", "3e-06"),
        ("type=float, default=1e-6", "--size small -r3e-6", "3e-06"),
        ("type=float, default=1e-6", "--size small -r=3e-6 -q", None),
        ("action=argparse.BooleanOptionalAction, default=1e-6", "--no-lr", None),
    ],
)
def test_an_option_whose_value_only_its_type_tells_is_named(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    option: str,
    typed: str,
    expected: str | None,
) -> None:
    added = f'parser.add_argument("-r", "--lr", {option})\nargs'
    text = HEAD.replace("\nargs", f"\n{added}")
    text += CONFIG.replace("1e-5", "args.lr") + END.format("")
    code, values, err = translated(capsys, tmp_path / "train.py", text, *typed.split())
    whole = expected and "--size" not in typed
    assert (code, values[RATE]) == (0 if whole else 1, expected), err
    assert ("learning_rate=args.lr is not taken over" in err) == (expected is None)


FIELDS = """
@dataclass
class Base:
    lr: float = 1e-5

@dataclass
class Own(Base):
    beta: float | None = field(default=0.2)
    checks: bool = True

def train(it):
    config = GRPOConfig("o", learning_rate=it.lr, beta=it.beta, gradient_checkpointing=it.checks)
    GRPOTrainer("m/m", "r/m", config, load_dataset("d/x")).train()
"""
FILLED_OWN = "(own,) = HfArgumentParser(Own).parse_args_into_dataclasses()\n"
FILLED_BOTH = "own, _ = TrlParser(dataclass_types=[Own, ModelConfig]).parse_args_and_config()\n"
FILLED_FIRST = "own = HfArgumentParser((Own,)).parse_args_into_dataclasses()[0]\n"


@pytest.mark.parametrize("filled", [FILLED_OWN, FILLED_BOTH, FILLED_FIRST])
@pytest.mark.parametrize(
    ("line", "typed", "expected"),
    [
        ("", "", "1e-05 0.2 on"),
        ("", "--beta 0.6 --lr=2e-6 --no_checks", "2e-06 0.6 off"),
        ("", "--checks false", "1e-05 0.2 off"),
        ("own.beta = 0.7 * scale()", "--lr 2e-6", "2e-06 None on"),
        ("other = own\nother.lr = rate()", "--beta 0.6", "None 0.6 on"),
        ("def adapt(it): it.beta = 3\nadapt(own)", "", "1e-05 None on"),
        ("from mine import adapt\nadapt(own)", "", "None None None"),
    ],
)
def test_a_field_of_the_script_s_own_class_has_what_is_typed_or_its_default(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    filled: str,
    line: str,
    typed: str,
    expected: str,
) -> None:
    script = tmp_path / "train.py"
    head = HEAD.partition("parser =")[0]
    script.write_text(f"{head}{FIELDS}\n{filled}{line}\ntrain(own)\n")
    code, out, err = run(capsys, str(script), *typed.split())
    made, (rate, kl, checks) = flags(out), expected.split()
    assert made.get(RATE, ["None"]) == [rate], err
    assert made.get(KL, ["None"]) == [kl], err
    assert ("--gradient_checkpointing" in made) == (checks == "on"), err
    assert code == (1 if "None" in expected else 0), err
