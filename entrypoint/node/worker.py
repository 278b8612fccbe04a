"""The life of a worker: find the head, check in, join Ray, stay until the outcome is known."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from contract.exit_codes import ExitCode
from contract.files.fd_store import FdStore
from contract.run_dir import RunFiles
from entrypoint.cluster.client import (
    RefusedError,
)
from entrypoint.cluster.trust import OtherTlsError, UntrustedError, WrongTokenError
from entrypoint.config.settings import Settings
from entrypoint.machine.gpus import use as gpu_use
from entrypoint.net import wait
from entrypoint.node import actor_logs, ended_start, ray_node
from entrypoint.node.candidate import TookOverError
from entrypoint.node.heritage import Succession
from entrypoint.node.membership import Membership
from entrypoint.processes.inbox import (
    Inbox,
    RayFailedError,
)
from entrypoint.processes.services import Services
from entrypoint.run import errors
from entrypoint.run import token as run_token
from entrypoint.run.unfit_head_note import HeadUnfitError

log = logging.getLogger(__name__)


def serve(settings: Settings, findings: Mapping[str, str], inbox: Inbox) -> int | Succession:
    """Stay in the cluster until the head announces the outcome; return the exit code.

    Returns a Succession if this worker has taken the place of a head that was lost. `findings`: as
    in NodeInfo.
    """
    if settings.start_id is not None and ended_start.is_over(settings):
        return ExitCode.FINISHED
    try:
        token = run_token.for_worker(settings, inbox.stop)
        run_token.show_to_shells(token)
        env = ray_node.environment(settings, token)
        with (
            ExitStack() as own,
            actor_logs.copying(settings),
            Services(settings, is_head=False, env=env, tell=log.warning) as services,
        ):
            memory = own.enter_context(FdStore(ray_node.fd_store_path(settings)))
            own.callback(memory.save, RunFiles(settings.run_dir).kept, settings.node_name)
            membership = Membership(settings, findings, token, inbox, services)
            try:
                use = gpu_use.watching(settings, membership.take_gpu_use)
                with use, membership.health.watching():
                    return membership.keep()
            except TookOverError as taken:
                own.pop_all()  # the memory stays for the head
                return taken.succession(memory, membership.token)
            finally:
                membership.candidate.watch.end()
                run_token.hide_from_shells(membership.ray_token)
    except wait.InterruptedWaitError as error:
        log.info("%s", inbox.with_reason(str(error)))
        return ExitCode.STOPPED
    except (wait.GaveUpError, HeadUnfitError) as error:
        log.error("%s", error)
        return ExitCode.UNREACHABLE
    except UntrustedError as error:
        log.error("%s does not join: %s", settings.node_name, error)
        is_other = isinstance(error, OtherTlsError)
        return ExitCode.UNFIT if is_other else ExitCode.NOT_ALLOWED
    except WrongTokenError as error:
        log.error("%s: set ROLLCALL_TOKEN to the head's token, or share its run directory", error)
        return ExitCode.NOT_ALLOWED
    except RayFailedError as error:
        log.error("%s", error)
        return error.exit_code
    except RefusedError as error:
        log.error("the head refuses this node: %s", error)
        return ExitCode.UNFIT
    except OSError as error:
        log.error("%s", errors.explain(error))
        return errors.exit_code(error, settings.run_dir)
