"""The file of a pipeline: its stages, what is wrong with them, and what they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoint.config.pipeline import PipelineError, filled, parsed

TWO = """
stages:
  - name: sft
    job: sft --pretrain org/model --dataset 'my data.jsonl'
  - name: rm
    job: [rm, --pretrain, "{stage.sft.model}", --max_steps, 3]
    runtime_env: {env_vars: {LEVEL: "2"}}
"""


def test_a_job_is_a_text_or_a_list_of_words() -> None:
    first, second = parsed(TWO)
    assert (first.name, second.name) == ("sft", "rm")
    assert first.words == ("sft", "--pretrain", "org/model", "--dataset", "my data.jsonl")
    assert second.words == ("rm", "--pretrain", "{stage.sft.model}", "--max_steps", "3")
    assert second.runtime_env == {"env_vars": {"LEVEL": "2"}}


@pytest.mark.parametrize(("style", "end"), [("|", " \\"), ("|", ""), (">", "")])
def test_a_command_of_several_lines_is_one_job(style: str, end: str) -> None:
    text = f"stages:\n- name: a\n  job: {style}\n    sft --pretrain m{end}\n    --dataset d\n"
    assert parsed(text)[0].words == ("sft", "--pretrain", "m", "--dataset", "d")


def test_a_reference_is_filled_with_the_run_directory_or_its_model() -> None:
    words = ("--a={stage.sft.run}/x", "{stage.sft.model}", '{"b": 1}', "{stages}")
    assert filled(words, {"sft": Path("/run/jobs/job-1")}) == (
        "--a=/run/jobs/job-1/x",
        "/run/jobs/job-1/hf",
        '{"b": 1}',
        "{stages}",
    )


def test_a_file_of_requirements_lies_beside_the_file_of_the_pipeline(tmp_path: Path) -> None:
    text = "stages: [{name: a, job: python train.py, runtime_env: {pip: needs/requirements.txt}}]"
    file = tmp_path / "needs/requirements.txt"
    with pytest.raises(PipelineError) as caught:
        parsed(text, tmp_path)
    problem = f"has pip: {file}, which cannot be read (No such file or directory)"
    remedy = "name a file of requirements, or give a list"
    assert caught.value.faults == (f"stage a: the runtime environment {problem}: {remedy}",)
    file.parent.mkdir()
    file.write_text("einops\ndatasets==5.2.0\n")
    (stage,) = parsed(text, tmp_path)
    assert stage.runtime_env == {"pip": ["einops", "datasets==5.2.0"]}
    file.write_text("einops\n")
    assert parsed(text, tmp_path)[0].key != stage.key, "another stage, which is run again"


def test_a_key_changes_with_its_stage_and_with_any_stage_before_it() -> None:
    before = [stage.key for stage in parsed(TWO)]
    assert [stage.key for stage in parsed(TWO)] == before
    last = [stage.key for stage in parsed(TWO.replace("max_steps, 3", "max_steps, 4"))]
    assert (last[0] == before[0], last[1] == before[1]) == (True, False)
    first = [stage.key for stage in parsed(TWO.replace("org/model", "org/other"))]
    assert set(first) & set(before) == set()


def test_all_faults_of_a_file_are_told_at_once_with_the_stages_name() -> None:
    text = """
stage: []
stages:
  - {name: sft, jbo: true, job: "sft 'open"}
  - {name: rm, job: ["x", true]}
  - {name: rm, job: "x {stage.ppo.model} {stage.stf.run} {stage.sft.modle}"}
  - {name: ppo, job: "", runtime_env: {piip: []}}
  - {name: "a b", job: "x {stage.run}"}
  - {job: {x: 1}, runtime_env: []}
  - word
"""
    with pytest.raises(PipelineError) as caught:
        parsed(text)
    said = caught.value.faults
    for sentence in (
        "the file has a field stage, which nothing reads: did you mean stages?",
        "stage sft has a field jbo, which nothing reads: did you mean job?",
        "stage sft: the job is not a command line: no closing quotation",
        "stage rm: the job's word True is not text: put it in quotes",
        "stage 3 has the name rm, as an earlier stage has",
        "stage rm: {stage.ppo.model} names a stage that does not come before",
        "stage rm: {stage.stf.run} names no stage of the file: did you mean sft?",
        "stage rm: {stage.sft.modle} names nothing: give {stage.NAME.run} or {stage.NAME.model}",
        "stage ppo: there is no job: give `job: sft --pretrain …`, or a program",
        "stage ppo: the runtime environment has no field piip: did you mean pip?",
        "stage a b: {stage.run} names nothing: give {stage.NAME.run} or {stage.NAME.model}",
        "stage 6: the job is neither a text nor a list of words",
        "stage 6: runtime_env is not an object of fields",
        "stage 7 is not an object with the fields name, job, runtime_env",
    ):
        assert sentence in said
    assert any(one.startswith("stage 5 has the name 'a b': use at most 64 letters") for one in said)
    assert any(one.startswith("stage 6 has the name ''") for one in said)
    assert len(said) == 16


def test_a_field_that_is_given_twice_is_refused_because_its_first_value_would_be_lost() -> None:
    """As of a stage whose dash was forgotten, and of two files that were joined."""
    joined = "stages:\n- name: a\n  job: x\n  name: b\n  job: y\nstages:\n- {name: c, job: z}\n"
    with pytest.raises(PipelineError) as caught:
        parsed(joined)
    remedy = "a stage begins with a dash, as in `- name: sft`"
    assert caught.value.faults == (
        f"line 6 gives stages a second time: {remedy}",
        f"line 4 gives name a second time: {remedy}",
        f"line 5 gives job a second time: {remedy}",
    )


@pytest.mark.parametrize("job", ["true", "7"])
def test_a_word_that_yaml_reads_as_no_text_belongs_in_quotes(job: str) -> None:
    with pytest.raises(PipelineError, match=f"^stage a: the job {job.title()} is not text: put it"):
        parsed(f"stages: [{{name: a, job: {job}}}]")
    assert parsed(f"stages: [{{name: a, job: '{job}'}}]")[0].words == (job,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no stages"),
        ("[]", "there are no stages"),
        ("stages: {}", "there are no stages"),
        ("stages: [", "the text is not YAML in line 1"),
        ("stages: &all [*all]", "has an alias inside of what it names"),
        ("? [a]\n: b", "the text is not YAML in line 1"),
    ],
)
def test_a_file_without_stages_is_refused(text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        parsed(text)
