"""The walks of docs/code-walks.md: where each begins and ends in a record, and its spine.

A spine is written by hand: the functions to read first, in the order of their first calls.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A function of a spine."""

    name: str
    """FILE:FUNCTION"""
    says: str
    """What it does here."""
    by: str = ""
    """What calls it, if no earlier step does: FILE:FUNCTION, or words, such as "over HTTP"."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What to show of the record: the calls between two others."""

    title: str
    text: str
    begin: str
    """FILE:FUNCTION"""
    end: str
    """The walk ends with the first call of it after the beginning; "": with its process."""
    spine: tuple[Step, ...]
    processes: tuple[str, ...]
    """Those that take part; others do their own work meanwhile. (): a spine without a record."""
    nth: int = 0
    """Which call of `begin`; the first calls may load what later calls have."""
    leads_to: str = ""
    """If given, the walk begins with the last call of `begin` before the first of this one."""
    before: tuple[str, str] | None = None
    """Another part of the walk, earlier: its first and its last function."""
    without: str = (
        ".*/(lease|watch-ray|watch-head|webhook|actor-logs|gpu-use|health|replacement"
        "|standing|replication|Dummy-[23]|ThreadPool.*)"
    )
    """Pattern of PROCESS/THREAD, for threads that do work of their own meanwhile.

    An actor computes in Dummy-1. It answers heartbeats in the next one, and copies the last step in
    another.
    """


TRAINING = (
    "the driver",
    "a rank of the policy",
    "a rank of the reference model",
    "an engine",
)
NODES = ("the head", "a worker node")
LOOP, RECOVERY = "trainer/training/loop.py", "trainer/training/recovery.py"
ROLLOUTS = "trainer/rollout/sync_rollout.py:SyncRollouts"
LEARNER = "trainer/workers/learner.py"
SUPERVISOR, ATTEMPT = "entrypoint/job/supervisor.py", "entrypoint/job/attempt.py"
MEMBERSHIP, WEBHOOK = "entrypoint/node/membership.py", "entrypoint/node/webhook.py"
RANKS, EVALUATOR = "trainer/cluster/ray_worker_group.py", "trainer/training/evaluator.py"
ENGINE = "trainer/rollout/hf_engine/engine.py:HFEngine"
COMMAND = "entrypoint/__main__.py"
OUTLAST = (f"{ATTEMPT}:Attempt.execute", f"{SUPERVISOR}:Supervisor._attempt")
"""Functions of spines that outlast their walk: what they call at their end is not in it."""
WALKS = (
    Walk(
        "A prompt, to the logged row of its step",
        "GRPO on two ranks with the transformers engine and a reward function in a Python file. "
        "The driver reads the prompts when it starts; the walk goes on with its second step.",
        f"{LOOP}:_Run._step",
        "trainer/metrics/recorder.py:Recorder.step_ended",
        (
            Step("trainer/rollout/prompts.py:load", "reads all prompts, with the chat template"),
            Step(
                "env/data/prompt_rows.py:RowReader.prompt",
                "makes a prompt of a row of the data",
                "env/data/prompts.py:load_prompts",
            ),
            Step(f"{LOOP}:_Run._step", "does one step", f"{LOOP}:_Run._next_due"),
            Step(
                f"{ROLLOUTS}._written",
                "draws the step's prompts, for `_Run._samples`",
                f"{ROLLOUTS}.step",
            ),
            Step(
                "trainer/rollout/generate.py:Generator.generate",
                "gives each engine its share of the prompts",
            ),
            Step(f"{ENGINE}.generate", "prompts to completions", "Ray"),
            Step(
                "trainer/rollout/tokenizer_io.py:Texts.prompt",
                "makes token ids of a prompt's text",
                "trainer/rollout/tokenizer_io.py:Texts.tokens",
            ),
            Step(
                "trainer/workers/experience.py:start_forward",
                "starts the models' log-probabilities, which run while rewards are computed",
                f"{LOOP}:_Run._samples",
            ),
            Step("trainer/rollout/rewards.py:score", "asks the reward for scores"),
            Step(
                "trainer/algorithms/advantages.py:above_baseline",
                "subtracts the estimator's baseline",
                f"{LOOP}:_Run._learn",
            ),
            Step(
                "trainer/workers/experience.py:make_lesson",
                "waits for log-probabilities; what the samples are worth",
            ),
            Step(f"{LOOP}:_Run._update", "has policy and critic learn", f"{LOOP}:_Run._learn"),
            Step(f"{LEARNER}:LearnerActor.update", "one rank's part of the update", "Ray"),
            Step(
                "trainer/algorithms/estimates.py:experience",
                "the advantages of the rank's tokens, with GAE or without",
            ),
            Step(
                f"{LEARNER}:LearnerEngine.train_step",
                "mini-batches, gradients, optimizer steps",
                "trainer/workers/policy.py:PolicyActor._trained",
            ),
            Step(
                "trainer/algorithms/losses.py:policy_loss",
                "the loss of a pass, with KL and entropy",
                "trainer/workers/policy.py:PolicyActor._loss",
            ),
            Step("trainer/weight_sync/update.py:update_weights", "brings weights to all engines"),
            Step("trainer/metrics/recorder.py:Recorder.log_step", "writes row and samples"),
        ),
        TRAINING,
        nth=1,
        before=("trainer/rollout/prompts.py:load", "trainer/algorithms/own_trials.py:run"),
    ),
    Walk(
        "An evaluation",
        "The driver has the engines answer held-out prompts, and logs the accuracy.",
        f"{LOOP}:_Run._evaluate",
        f"{EVALUATOR}:Evaluator._keep_the_best",
        (
            Step(f"{LOOP}:_Run._evaluate", "is due each --eval_steps"),
            Step(f"{EVALUATOR}:Evaluator.measure", "asks the engines and the reward"),
            Step("trainer/rollout/generate.py:Generator.held_out", "gives held-out prompts"),
            Step(f"{ENGINE}.generate", "writes the answers"),
            Step("trainer/rollout/rewards.py:score", "scores them as in training"),
            Step("trainer/metrics/evaluation.py:Evaluation.of", "the accuracy of the scores"),
            Step(f"{EVALUATOR}:Evaluator.record", "logs it, and compares it with the best"),
            Step("trainer/metrics/recorder.py:Recorder.evaluated", "writes the event and the row"),
            Step(f"{EVALUATOR}:Evaluator._keep_the_best", "exports the policy if it is better"),
        ),
        TRAINING,
    ),
    Walk(
        "A lost rank, to engines that have weights again",
        "A rank of the policy is killed; the other node holds a copy of the last step.",
        f"{RANKS}:_RanksPending._check",
        "trainer/metrics/recorder.py:Recorder.engines_ready",
        (
            Step(f"{RANKS}:_RanksPending._check", "looks at a rank's answer"),
            Step("trainer/cluster/calls.py:received", "makes LostWorkerError of a dead actor"),
            Step(
                "trainer/cluster/heartbeat.py:GroupHeartbeat.lost",
                "passes on the loss of a killed rank",
            ),
            Step(
                f"{LOOP}:_Run._recover",
                "repairs, once `_Run.to_the_end` has caught the error",
                f"{LOOP}:_Run._next_due",
            ),
            Step(f"{RECOVERY}:Recovery.recover", "restarts the lost role, restores the learners"),
            Step(f"{RANKS}:RayWorkerGroup.restart", "starts the role's processes again"),
            Step(f"{RECOVERY}:ReplicasInMemory.newest", "finds the newest step in memory"),
            Step(
                "trainer/checkpoint/resume.py:restore_learners",
                "has each rank restore its shard",
                f"{RECOVERY}:ReplicasInMemory.restore",
            ),
            Step(
                "trainer/workers/learner.py:LearnerEngine.restore",
                "on the rank, loads the shard into the model",
                "trainer/workers/learner.py:LearnerActor.restore",
            ),
            Step(f"{RECOVERY}:Recovery.report", "writes rank-replaced to the journal"),
            Step(
                f"{LOOP}:_Run._publish",
                "publishes the restored weights",
                f"{LOOP}:_Run._with_engines",
            ),
            Step("trainer/weight_sync/update.py:update_weights", "brings them to all engines"),
        ),
        TRAINING,
        leads_to=f"{LOOP}:_Run._recover",
    ),
    Walk(
        "A node, to its place on the roll",
        "A worker finds the head and checks in; the head tells it whether it may join.",
        f"{MEMBERSHIP}:Membership._join_once",
        f"{MEMBERSHIP}:Membership._stay",
        (
            Step(f"{MEMBERSHIP}:Membership._join_once", "one membership, from search to end"),
            Step("entrypoint/node/find_head.py:HeadLocator.find", "looks up the head's address"),
            Step("entrypoint/node/way_in.py:through", "tries each address of the head"),
            Step("entrypoint/cluster/client.py:ControlClient.check_in", "sends what the node is"),
            Step(
                "entrypoint/cluster/worker_routes.py:WorkerRoutes._check_in",
                "reads the request",
                "over HTTP",
            ),
            Step("entrypoint/cluster/registry.py:NodeRegistry.check_in", "decides on the answer"),
            Step("entrypoint/cluster/refusal.py:refusal", "why a node may not join"),
            Step(f"{MEMBERSHIP}:Membership._stay", "starts Ray, and watches the head"),
        ),
        NODES,
        without="the head/(?!control|asyncio_0|ask).*",
    ),
    Walk(
        "`rollcall up` on the head, to the job's process",
        "The shortest start: a node with a job, which is its own head. Only the functions to read.",
        f"{COMMAND}:main",
        "",
        (
            Step(f"{COMMAND}:main", "every command begins here"),
            Step("entrypoint/commands/cli.py:parse", "which command the words ask for"),
            Step(
                "entrypoint/commands/typed_job.py:read",
                "which recipe the job's words are for",
                f"{COMMAND}:_on_this_node",
            ),
            Step(
                "entrypoint/commands/up.py:up",
                "faults of the job, preflight",
                f"{COMMAND}:_on_this_node",
            ),
            Step("entrypoint/preflight/run.py:run_checks", "the checks of this node"),
            Step("entrypoint/node/roles.py:serve", "head or worker"),
            Step("entrypoint/node/head.py:serve", "lease, Ray, control port, services, outcome"),
            Step(
                "entrypoint/node/ray_head.py:HeadRay.wait_ready",
                "waits until Ray answers",
                "entrypoint/node/head.py:_lead",
            ),
            Step(
                f"{SUPERVISOR}:Supervisor.supervise",
                "one attempt after another",
                "entrypoint/node/head.py:_supervision.supervise",
            ),
            Step(
                "entrypoint/job/rendezvous.py:Rendezvous.complete",
                "calls the roll, checks collectives",
            ),
            Step(f"{SUPERVISOR}:Supervisor._attempt", "one attempt, and what it has lost"),
            Step(f"{ATTEMPT}:Attempt.execute", "submits, follows and judges the job"),
            Step("entrypoint/job/ray_jobs.py:JobClient.submit", "posts the command to Ray"),
            Step("trainer/__main__.py:main", "the driver: flags to Config, then the run", "Ray"),
            Step(
                f"{SUPERVISOR}:conclude",
                "writes the outcome, returns the exit code",
                "entrypoint/node/head.py:_lead",
            ),
        ),
        (),
    ),
    Walk(
        "A typed command, to the job's process",
        "`rollcall submit` asks a head that waits for jobs. `rollcall/__main__.py` calls the first "
        "function.",
        f"{COMMAND}:main",
        "trainer/__main__.py:main",
        (
            Step(f"{COMMAND}:main", "every command begins here"),
            Step("entrypoint/commands/cli.py:parse", "which command the words ask for"),
            Step(f"{COMMAND}:_ask", "has the table of commands that ask the head"),
            Step("entrypoint/commands/jobs.py:submit", "sends the job to the head"),
            Step(
                "entrypoint/cluster/job_routes.py:JobRoutes._submit",
                "reads the request",
                "over HTTP",
            ),
            Step("entrypoint/job/job_queue.py:JobQueue.submit", "refuses the job, or takes it"),
            Step(
                "entrypoint/job/job_loop.py:JobLoop._lead",
                "runs the job that `JobQueue.begin_next` has chosen",
                "entrypoint/job/job_loop.py:JobLoop.serve",
            ),
            Step(
                f"{SUPERVISOR}:Supervisor.supervise",
                "one attempt after another",
                "entrypoint/node/head.py:_supervision.supervise",
            ),
            Step(f"{SUPERVISOR}:Supervisor._attempt", "one attempt, and what it has lost"),
            Step(f"{SUPERVISOR}:Supervisor._plan", "where to resume; the job's command line"),
            Step(f"{ATTEMPT}:Attempt.execute", "submits, follows and judges the job"),
            Step("entrypoint/job/ray_jobs.py:JobClient.submit", "posts the command to Ray"),
            Step("trainer/__main__.py:main", "the driver: flags to Config, then the run", "Ray"),
        ),
        ("`rollcall submit`", "the head", "the driver"),
        leads_to="entrypoint/commands/jobs.py:submit",
    ),
    Walk(
        "A crash of the driver, to the next attempt",
        "The driver is killed; the next one resumes from the newest complete state.",
        "entrypoint/job/failures/classes.py:classify",
        f"{LOOP}:_Run._step",
        (
            Step("entrypoint/job/failures/classes.py:classify", "the failure class, by evidence"),
            Step(
                f"{SUPERVISOR}:Supervisor._decide",
                "judges the attempt, and records why it ended",
                f"{SUPERVISOR}:Supervisor.supervise",
            ),
            Step("entrypoint/job/failures/policy.py:decide", "resume, replace, shrink or stop"),
            Step(
                "entrypoint/job/rendezvous.py:Rendezvous.recover",
                "makes the cluster fit for another attempt",
                f"{SUPERVISOR}:Supervisor.supervise",
            ),
            Step(
                "entrypoint/job/rendezvous.py:Rendezvous.complete",
                "calls the roll, checks collectives",
                f"{SUPERVISOR}:Supervisor.supervise",
            ),
            Step(
                f"{SUPERVISOR}:Supervisor._plan",
                "finds the checkpoint to resume from",
                f"{SUPERVISOR}:Supervisor._attempt",
            ),
            Step(
                f"{ATTEMPT}:Attempt.execute",
                "submits the job again",
                f"{SUPERVISOR}:Supervisor._attempt",
            ),
            Step("trainer/__main__.py:main", "the new driver", "Ray"),
            Step("trainer/training/run.py:run", "places processes, loads models"),
            Step("trainer/training/loop.py:train", "restores the state, then trains"),
            Step("trainer/checkpoint/resume.py:begin", "restores the newest complete state"),
            Step(f"{LOOP}:_Run._step", "repeats what was lost"),
        ),
        ("the head", "the driver"),
        leads_to=f"{SUPERVISOR}:Supervisor._decide",
    ),
    Walk(
        "An event, to the webhook",
        "The head posts what happened.",
        f"{WEBHOOK}:Follower.new",
        f"{WEBHOOK}:Follower.new",
        (
            Step(f"{WEBHOOK}:Follower.new", "reads new events of the journals"),
            Step(f"{WEBHOOK}:News.of", "a message, if the event is news"),
            Step(f"{WEBHOOK}:Poster.post", "posts it until it is taken", f"{WEBHOOK}:_tell"),
            Step("entrypoint/net/wait.py:until", "repeats with pauses, up to a deadline"),
        ),
        ("the head",),
        leads_to=f"{WEBHOOK}:Poster.post",
        without="the head/(?!webhook).*",
    ),
    Walk(
        "A plan",
        "`rollcall plan --json` for the same job.",
        f"{COMMAND}:main",
        "",
        (
            Step(f"{COMMAND}:main", "every command begins here"),
            Step("entrypoint/commands/cli.py:parse", "flags of `plan`, and the job's words"),
            Step("entrypoint/commands/typed_job.py:read", "which recipe the words are for"),
            Step("entrypoint/config/read.py:read_settings", "variables to Settings, or all faults"),
            Step("entrypoint/commands/plan.py:main", "prints the row"),
            Step("entrypoint/config/role.py:decide", "is this node the head?"),
            Step(
                "entrypoint/job/recipes/builtin/recipe.py:Builtin.faults",
                "reads the trainer's flags",
                "entrypoint/commands/plan.py:_job_row",
            ),
            Step("trainer/cluster/resource_plan.py:row", "places roles on nodes, estimates memory"),
        ),
        ("`rollcall plan`",),
    ),
    Walk(
        "SIGTERM, to the saved step",
        "The head has the job save and end, and then the workers.",
        f"{ATTEMPT}:Attempt._stop",
        f"{SUPERVISOR}:record",
        (
            Step(f"{ATTEMPT}:Attempt._stop", "asks the job to save and to end"),
            Step("entrypoint/job/ray_jobs.py:JobClient.stop", "has Ray send SIGTERM"),
            Step("trainer/cluster/stop.py:StopRequest._on_signal", "notes the wish", "Ray"),
            Step(
                "trainer/checkpoint/checkpointer.py:Checkpointer.finish",
                "waits until the last checkpoint is complete",
                f"{LOOP}:_Run._save",
            ),
            Step(
                f"{ATTEMPT}:Attempt._last_status",
                "how the job ended",
                f"{ATTEMPT}:Attempt.execute",
            ),
            Step(
                f"{SUPERVISOR}:Supervisor._decide",
                "ends the run as stopped",
                f"{SUPERVISOR}:Supervisor.supervise",
            ),
            Step("entrypoint/job/failures/policy.py:decide", "a stop is no failure"),
            Step(f"{SUPERVISOR}:record", "writes result.json", f"{SUPERVISOR}:conclude"),
        ),
        ("the head", "the driver"),
    ),
)
