"""`plan pipeline FILE`: what each stage would do, without a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.exit_codes import ExitCode
from contract.options import ConfigError, Fault
from contract.run_dir import RunFiles
from entrypoint.commands import plan
from entrypoint.commands.cli import Invocation
from entrypoint.config import pipeline
from entrypoint.config.settings import Settings
from entrypoint.job.recipes import base as recipes
from entrypoint.job.recipes.recognise import settings_for


def main(settings: Settings | ConfigError, call: Invocation) -> int:
    """Print the plan of each stage; return 64 if the file or a stage has faults."""
    if isinstance(settings, ConfigError):
        return plan.main(settings, call.as_json, call.planned)
    path = Path(call.stages_of)
    try:
        stages = pipeline.parsed(path.read_text(), path.parent)
    except pipeline.PipelineError as error:
        return _refused(*(f"{path}: {fault}" for fault in error.faults))
    except (OSError, ValueError) as error:
        return _refused(f"{path}: {getattr(error, 'strerror', None) or 'it is not text'}")
    rows = dict(_planned(settings, stages, call))
    if call.as_json:
        print(json.dumps(rows, indent=2))
    else:
        for name, row in rows.items():
            print(f"stage {name}", flush=True)
            plan.show(row, cost=call.shows_cost)
            sys.stderr.flush()
    return ExitCode.USAGE if any(row["faults"] for row in rows.values()) else ExitCode.FINISHED


def _planned(
    head: Settings, stages: list[pipeline.Stage], call: Invocation
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the plan of each stage, with the run directories that it would have."""
    known: dict[str, Settings] = {}
    for stage in stages:
        runs = {name: of.run_dir for name, of in known.items()}
        words = pipeline.filled(stage.words, runs)
        settings = replace(
            settings_for(replace(head, waits_for_jobs=False), words, stage.runtime_env),
            runtime_env=dict(stage.runtime_env),
            name=stage.name,
            run_dir=RunFiles(head.run_dir).jobs / stage.name,
        )
        row = plan.plan(settings, call.planned, list(runs.values()))
        for name in pipeline.models_named(stage.words):
            if why := recipes.load(known[name].recipe).without_model(known[name]):
                said = f"{{stage.{name}.model}} will not be there: in {name}, {why}"
                row["faults"].append(plan.fault_row(Fault("job", None, said, "")))
        known[stage.name] = settings
        yield stage.name, row


def _refused(*faults: str) -> int:
    print("\n".join(faults), file=sys.stderr)
    return ExitCode.USAGE
