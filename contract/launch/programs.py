"""Modules that this product starts as programs, by name (`python -m`)."""

from __future__ import annotations

from enum import StrEnum


class Program(StrEnum):
    ROLLCALL = "rollcall"
    OWN_PACKAGES = "rollcall.own_packages"
    """Runs another program with Rollcall's packages, whatever modules of their names there are."""
    NODE_REPORT = "entrypoint.node.existing_ray.node_report"
    DEMO_NODES = "entrypoint.commands.demo_nodes"
    """Ends the nodes of a demo that was killed."""
    INTERRUPTIBLE = "entrypoint.processes.interruptible"
    """Runs another program so that Ctrl-C ends it as it ends others."""

    TRAINER = "trainer"
    SUPERVISED = "trainer.supervised"
    STANDBY_IMPORTS = "trainer.cluster.standby_imports"
    WARM = "trainer.cluster.warm.server"
    WARM_SHIM = "trainer.cluster.warm.shim"
    """Stands in for Python; it is started by its path."""
    RAY_START = "trainer.cluster.ray_start"
    RAY_DASHBOARD = "trainer.cluster.ray_dashboard"
    LAUNCH = "trainer.cluster.launch"
    """The driver of a job that runs once for each rank of all nodes."""
    RANK_KEEPER = "trainer.cluster.launch.keeper"
    WITH_STEPS = "trainer.cluster.launch.with_steps"
    """Runs a script so that it prints its steps."""
    ALLREDUCE = "trainer.cluster.diagnostics.allreduce"
    DECLARE_DEAD = "trainer.cluster.diagnostics.declare_dead"
    GPU_BURN = "trainer.cluster.diagnostics.gpu_burn"
    RUN_ON_NODES = "trainer.cluster.diagnostics.run_on_nodes"
    PACK_WORKING_DIR = "trainer.cluster.diagnostics.pack_working_dir"
    SERVE_REWARD = "trainer.models.serve_reward"
    TRANSLATE = "trainer.config.translate"
    SCRIPT_COMMANDS = "trainer.config.translate.script_commands"
    """Prints the commands that a shell script runs."""
    TRY_CODE = "trainer.rollout.try_code"
    """Runs a user's reward function and environment on the first rows of the data."""

    PREPARE = "env.prepare"
    REWARD_SERVER = "env.server"
    RETRIEVER = "env.retrieval.server"
