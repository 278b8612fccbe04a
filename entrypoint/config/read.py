"""The only reader of the environment: one frozen `Settings`, or every fault at once.

A variable that is empty counts as not set.
"""

from __future__ import annotations

import copy
import difflib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.files import child_variables
from contract.launch.command_lines import PASSED_ON
from contract.options import Declared, Fault, ParseError, nearest
from contract.redaction import MASK, SECRET_NAME, secret_texts
from entrypoint.config import job_parsers, parsers, role, wandb_key
from entrypoint.config.conflicts import contradictions
from entrypoint.config.misspelt import MISSPELT, service_links
from entrypoint.config.parsers import DebugRay
from entrypoint.config.partly import PartlyRead, SettingsError
from entrypoint.config.platforms.detect import detect
from entrypoint.config.platforms.facts import Facts
from entrypoint.config.recipe_registry import ANY, RECIPES, command_of
from entrypoint.config.settings import Settings, declared, variable_names
from entrypoint.config.uses import OF_OTHER_PROGRAMS, Use
from entrypoint.config.variables import Variable, is_placeholder, shown, shown_placeholder

PREFIX = "ROLLCALL_"
LONGEST_SECRET = 64 * 1024

SHELL_LIKE = (parsers.arguments, job_parsers.resume_arguments)
"""Parsers of words that are quoted as in a shell."""
ISSUED_KEYS = ("HF_", "HUGGING_FACE_", "WANDB_")
"""How names begin of variables whose secrets others have issued: no word is such a secret."""
HARMLESS = re.compile(
    r"[\d.,:+-]{1,15}|\d[\d.]{0,7}[A-Za-z]{1,3}|[a-z][a-z_]{0,11}|(?:~|\.\.?)?/.*"
)
"""Matches a number, also with a unit, a short word and a path: no issuer's secret is one."""
QUOTED = ("is in quotes, and the quotes are part of the value", "remove the quotes")
"""`docker --env-file` and manifests keep the quotes that a shell would take away."""


def read_settings(
    environ: Mapping[str, str],
    job: Sequence[str] = (),
    recipe: str | None = None,
    use: Use = Use.START,
) -> Settings:
    """The settings in `environ`, with the `job` arguments of the command line.

    `recipe`: that of a job whose program tells it; it counts before ROLLCALL_RECIPE.
    Raises ConfigError with every fault that counts for `use`.
    """
    environ = without_service_links(environ)
    reader, platform = Reader(environ), detect(environ)
    values = {name: reader.read(variable) for name, variable in declared().items()}
    values["node_name"] = values["node_name"] or platform.node_name or reader.host_name()
    values["node_address"] = values["node_address"] or platform.node_address
    values["start_id"] = values["start_id"] or platform.start_id
    if not environ.get("DEBUG_RAY"):  # DEBUG_RAY=0 is an answer
        values["debug_ray"] = _ray_debugger(environ)
    values["image"] = values["image"] or _image_digest()
    if job and values["job"]:
        problem = "is set, and the command line has job arguments too"
        reader.fault("ROLLCALL_JOB", problem, "give one of the two")
    values["recipe"] = recipe or values["recipe"]
    words, around = command_of(values["recipe"], job or values["job"])
    values |= {"job": words, "around_job": around}
    if RECIPES[values["recipe"]].wandb_flag:
        values["job"], key = wandb_key.taken_from(values["job"])
        if key is None or not is_placeholder(key.reveal()):
            values["wandb_api_key"] = key or values["wandb_api_key"]
        elif values["wandb_api_key"] is None:
            flag, problem = wandb_key.flag_in(words), "is a guide's placeholder"
            given = shown_placeholder(key.reveal())
            reader.faults.append(Fault(flag, given, problem, "Give the key by WANDB_API_KEY"))
    settings = Settings(environ=dict(environ), platform=platform, **values)
    if use is Use.START and role.is_worker(settings):
        use = Use.MACHINE
    reader.faults = [fault for fault in reader.faults if use.needs(fault.path)]
    reader.check_variables(variable_names(), use)
    reader.check_platform(platform, use)
    if use is Use.MACHINE and recipe is None:
        settings = _of_other_program(settings)
    partly = PartlyRead.of(settings, reader.unusable)
    faults = [*reader.faults, *contradictions(partly, use)]
    if faults and use is not Use.ASK:  # alone they are faults only of commands that need the role
        faults += role.faults(partly, is_told=not platform.faults)
    if faults:
        raise SettingsError(faults, partly)
    return settings


def misspelt_to_ask(environ: Mapping[str, str]) -> Sequence[Fault]:
    """Return the faults of names that may mean a setting by which a command finds its run."""
    reader = Reader(environ)
    reader.check_variables(variable_names(), Use.ASK)
    return reader.faults


def _of_other_program(settings: Settings) -> Settings:
    """Return the settings with the recipe of any program, if nothing names one.

    Settings of other programs tell that the head's command line has one.
    """
    is_named = settings.variable("recipe") or settings.waits_for_jobs
    if is_named or not any(map(settings.variable, OF_OTHER_PROGRAMS)):
        return settings
    return replace(settings, recipe=ANY)


def without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what Kubernetes has set for a service in place of a setting.

    For a service called `rollcall-ray`, Kubernetes sets ROLLCALL_RAY_PORT=tcp://10.0.0.7:6379; for
    one called `vllm` VLLM_PORT, which ends vLLM; for one called `master` MASTER_PORT.
    """
    links = service_links(environ)
    known = variable_names()

    def is_link(name: str, text: str) -> bool:
        replaces = name in known or name.startswith(PASSED_ON)
        return replaces and name.startswith(links) and "://" in text

    return {name: text for name, text in environ.items() if not is_link(name, text)}


def _ray_debugger(environ: Mapping[str, str]) -> DebugRay:
    """The debugger that Ray's own variables select. Ray needs an option beside `RAY_DEBUG`."""
    if environ.get("RAY_DEBUG") == "legacy":
        return DebugRay.LEGACY
    return DebugRay.POST_MORTEM if environ.get("RAY_DEBUG_POST_MORTEM") == "1" else DebugRay.OFF


class Reader:
    """Reads variables from an environment; each method adds the faults it finds to `faults`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.secrets = secret_texts(environ)
        self.faults: list[Fault] = []
        self.doubtful: set[str] = set()
        """Variables that a misspelt name may mean."""

    @property
    def unusable(self) -> frozenset[str]:
        """The fields of Settings that have no value which the user has meant."""
        wrong = self.doubtful.union(fault.path for fault in self.faults)
        return frozenset(
            field for field, one in declared().items() if not wrong.isdisjoint(one.about.names)
        )

    def read(self, declared: Declared[Variable]) -> Any:
        """The variable's value; its default if it is not set or has a fault."""
        variable = declared.about
        parse = variable.parse or parsers.of_type(declared.kind, variable)
        if (raw := self._text(variable)) is not None:
            try:
                if is_quoted(raw, shell_like=parse in SHELL_LIKE):
                    raise ParseError(*QUOTED)
                return parse(raw)
            except ParseError as wrong:
                self.fault(variable.name, wrong.problem, wrong.remedy, secret=variable.secret)
        return copy.copy(declared.default)

    def fault(self, name: str, problem: str, remedy: str, *, secret: bool = False) -> None:
        value = self._given(name)
        if value is not None:
            value = MASK if secret else shown(value, self.secrets)
        self.faults.append(Fault(name, value, problem, remedy))

    def check_variables(self, known: Sequence[str], use: Use) -> None:
        """Report each name with our prefix that is not in `known`, and each misspelt name.

        A misspelt name looks like a known variable without our prefix that is not set.
        """
        unset = [name for name in known if not name.startswith(PREFIX) and not self._given(name)]
        for name in sorted(self.environ):
            if name not in known and use is not Use.ASK:
                self._check_passed_on(name)
            meant = nearest(name.upper(), unset, cutoff=MISSPELT)
            if meant and name not in known and use.may_mean([meant]):
                self.doubtful.add(meant)
                remedy = f"spell it as {meant}, or rename it if it is another program's"
                self.fault(
                    name, "is not a setting", remedy, secret=self._may_be_secret(name, meant)
                )
                continue
            ours = _with_prefix(name)
            if ours is None or name in (*known, *child_variables.ALL):
                continue
            if self._is_service_link(name):
                continue
            alike = _alike(ours, known)
            if not use.may_mean(alike.split(" or ")):
                continue
            self.doubtful.update(alike.split(" or "))
            secret = self._may_be_secret(name, *alike.split(" or "))
            self.fault(
                name, "is not a setting", f"remove it, or spell it as {alike}", secret=secret
            )

    def _check_passed_on(self, name: str) -> None:
        """Report a value of another program's variable that cannot be meant."""
        if name.upper().startswith(PASSED_ON) and self._is_quoted(name):
            self.fault(name, *QUOTED)
        if self._is_placeholder(name):
            self.fault(name, *parsers.PLACEHOLDER, secret=True)

    def check_platform(self, facts: Facts, use: Use) -> None:
        """Report the platform's own faults, unless an explicit variable replaces the fact."""
        for fact, fault in facts.faults.items():
            all_variables = declared().values()
            replacing = (one.name for one in all_variables if fact in one.about.replaces)
            if use.needs_fact(fact) and not any(map(self._given, replacing)):
                self.faults.append(fault)

    def host_name(self) -> str:
        name = socket.gethostname()
        try:
            return parsers.node_name(name)
        except ParseError as error:
            problem = f"is not set, and this host's name {name!r} {error.problem}"
            self.fault("ROLLCALL_NODE_NAME", problem, error.remedy)
            return name

    def _may_be_secret(self, name: str, *meant: str) -> bool:
        """Whether a variable that nobody declares may hold a secret, by all that is like it."""
        secret = any(SECRET_NAME.search(one) or _is_secret(one) for one in (name, *meant))
        return secret or not HARMLESS.fullmatch(self._given(name) or "")

    def _is_quoted(self, name: str) -> bool:
        return is_quoted(self._given(name) or "", shell_like=False)

    def _is_placeholder(self, name: str) -> bool:
        """Whether a guide's placeholder stands where a service's key belongs."""
        is_key = name.upper().startswith(ISSUED_KEYS) and SECRET_NAME.search(name)
        return bool(is_key) and is_placeholder(self._given(name) or "")

    def _given(self, name: str) -> str | None:
        return self.environ.get(name, "").strip() or None

    def _text(self, variable: Variable) -> str | None:
        """The variable's text; for a secret also the text of its file."""
        direct = self._given(variable.name)
        named = self._given(f"{variable.name}_FILE") if variable.secret else None
        if named is None:
            return direct
        file_variable = f"{variable.name}_FILE"
        if self._is_quoted(file_variable):
            self.fault(file_variable, *QUOTED)
            return None
        if direct is not None:
            self.fault(file_variable, f"is set beside {variable.name}", "give one of the two")
            return None
        try:
            with Path(named).open() as file:
                text = file.read(LONGEST_SECRET).strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            remedy = "name a file that this process can read"
            self.fault(file_variable, f"cannot be read ({reason})", remedy)
            return None
        if not text:
            self.fault(file_variable, "names an empty file", "put the secret into it")
        return text or None

    def _is_service_link(self, name: str) -> bool:
        """Whether Kubernetes sets the name for a service that is called `rollcall…`."""
        return name.startswith(service_links(self.environ))


def is_quoted(text: str, *, shell_like: bool) -> bool:
    """Return whether quotes enclose the whole text, and are none of a text that a shell reads."""
    quote, inner = text[:1], text[1:-1]
    if quote not in ("'", '"') or len(text) < 2 or text[-1] != quote:
        return False
    if shell_like and len(inner.split()) < 2:
        return False
    return quote not in inner or inner.startswith("{")  # a JSON object has quotes of its own


def _is_secret(name: str) -> bool:
    return any(one.about.secret for one in declared().values() if one.name == name)


def _with_prefix(name: str) -> str | None:
    """Return the name with our prefix in place of a misspelt one; None for another program's."""
    word, _, rest = name.upper().partition("_")
    own = PREFIX.rstrip("_")
    return f"{PREFIX}{rest}" if rest and nearest(word, [own], cutoff=MISSPELT) else None


def _alike(name: str, known: Sequence[str]) -> str:
    """The one or two names of `known` that are most like `name`."""
    bare = {spelling.removeprefix(PREFIX): spelling for spelling in known}
    wanted = name.upper().removeprefix(PREFIX)
    if wanted in bare:
        return bare[wanted]
    if near := nearest(wanted, bare, cutoff=MISSPELT):
        return bare[near]
    close = difflib.get_close_matches(wanted, bare, n=2, cutoff=0.5)
    return " or ".join(bare[spelling] for spelling in close) or "one that the README lists"


def _image_digest() -> str | None:
    """Return the digest of the image's source and lock files; None outside an image."""
    try:
        return Path(__file__).with_name("image.digest").read_text().strip() or None
    except OSError:
        return None
