"""What is masked in all that is shown: the values of secret options, however they are written."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from contract.files.log_copy import Copy
from contract.redaction import (
    LINE,
    MASK,
    is_placeholder,
    named_secrets,
    redact,
    redact_all,
    redact_lines,
    secret_texts,
)

SECRET = "9f86d081884c7d659a2feaa0c55ad015"
NAMED = (
    *(
        "--hf_token TOKEN",
        "--use_wandb=WANDB_API_KEY x",
        "login -p PASSWORD",
        "['--key', 'MY_KEY']",
    ),
    *('docker run -e HF_TOKEN="$HF_TOKEN" x', "--token ${HF_TOKEN} x", '{"token": "SECRET"}'),
    *("curl -H 'Authorization: Bearer TOKEN'", "Authorization: Bearer $ROLLCALL_TOKEN"),
    *("https://$GITHUB_TOKEN@host/x.git", "http://me:PASSWORD@head", "--api_key <your key>"),
    *("ROLLCALL_TOKEN=… rollcall status", "export ROLLCALL_TOKEN=TOKEN; rollcall status"),
)
"""Commands that name a secret and have none: they stay, so that a reader can copy them."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--wandb_key abcd --input_key prompt", f"--wandb_key {MASK} --input_key prompt"),
        ("--use_wandb abcd --seed 1", f"--use_wandb {MASK} --seed 1"),
        ("--logger.wandb.key=abcd", f"--logger.wandb.key={MASK}"),
        ("--hf-token 'a b' x", f"--hf-token {MASK} x"),
        ("--creds abcd --auth=abcd", f"--creds {MASK} --auth={MASK}"),
        ("DB_PASS=abcd SMTP_CREDENTIALS=abcd", f"DB_PASS={MASK} SMTP_CREDENTIALS={MASK}"),
        ("--compass abcd bypass=abcd", "--compass abcd bypass=abcd"),
        ("login -p abcd -p 'a b' x", f"login -p {MASK} -p {MASK} x"),
        ("curl -u me:abcd http://x", f"curl -u {MASK} http://x"),
        ("['a', '-p', 'abcd', '-u', 'me:abcd']", f"['a', '-p', '{MASK}', '-u', '{MASK}']"),
        (r"[\"a\", \"-p\", \"abcd\"]", rf"[\"a\", \"-p\", \"{MASK}\"]"),
        ("--db-pwd abcd --passphrase=abcd", f"--db-pwd {MASK} --passphrase={MASK}"),
        ("mkdir -p out && serve -p 8000", "mkdir -p out && serve -p 8000"),
        ("mkdir -p out && login -p abcd", f"mkdir -p out && login -p {MASK}"),
        ("run -p 80:80/tcp -p out/x -u me -p -v", "run -p 80:80/tcp -p out/x -u me -p -v"),
        ("srun -p gpu ['pytest', '-p', 'no:x']", "srun -p gpu ['pytest', '-p', 'no:x']"),
        ("PWD=/abcd/e OLDPWD=/abcd", "PWD=/abcd/e OLDPWD=/abcd"),
        ("GH_PAT=abcd --gh-pat abcd", f"GH_PAT={MASK} --gh-pat {MASK}"),
        ("export PAT='a b' SSHPASS=abcd x", f"export PAT={MASK} SSHPASS={MASK} x"),
        ("DB_PASSCODE=abcd CI_JWT=abcd", f"DB_PASSCODE={MASK} CI_JWT={MASK}"),
        ("GH_PAT: ab12cd", f"GH_PAT: {MASK}"),
        ("  PAT: 'ab12cd'\n  credentials: ab12cd", f"  PAT: {MASK}\n  credentials: {MASK}"),
        ("TOKEN: ab12cd, the token: ab12cd", f"TOKEN: {MASK}, the token: ab12cd"),
        ("PATH=/abcd PATTERN=abcd", "PATH=/abcd PATTERN=abcd"),
        ("--patience 5 --path abcd --compat abcd", "--patience 5 --path abcd --compat abcd"),
        ("PASS: ab12cd, compat: ab12cd", "PASS: ab12cd, compat: ab12cd"),
        ("MAX_TOKENS=1024 --tokenizer abcd", "MAX_TOKENS=1024 --tokenizer abcd"),
        ("Authorization: Bearer abcd", f"Authorization: Bearer {MASK}"),
        ("AUTHORIZATION: BEARER abcd", f"AUTHORIZATION: BEARER {MASK}"),
        ("authorization: basic dTpw", f"authorization: basic {MASK}"),
        ("a bearer abc123 and a bearer token", f"a bearer {MASK} and a bearer token"),
        ("Authorization: Token abcd", f"Authorization: Token {MASK}"),
        ("-H 'Authorization:Bearer abcd'", f"-H 'Authorization:Bearer {MASK}'"),
        ('{"Authorization": "Bearer abcd"}', f'{{"Authorization": "Bearer {MASK}"}}'),
        ("Authorization: ab12cd", f"Authorization: {MASK}"),
        ("Authorization: needs a token", "Authorization: needs a token"),
        ("-H 'X-Api-Key: ab12cd' x", f"-H 'X-Api-Key: {MASK}' x"),
        ("{env_vars: {HF_TOKEN: abcdef}}", f"{{env_vars: {{HF_TOKEN: {MASK}}}}}"),
        ("{HF_TOKEN:ab12cd}", f"{{HF_TOKEN:{MASK}}}"),
        ("HF_TOKEN: missing, so nothing", "HF_TOKEN: missing, so nothing"),
        ("--hub_token: unknown flag", "--hub_token: unknown flag"),
        ("gen_token: 1234567, best_key: reward", "gen_token: 1234567, best_key: reward"),
        ("API_KEYS=abcd HF_TOKENS=abcd", f"API_KEYS={MASK} HF_TOKENS={MASK}"),
        ("--max_tokens 1024 --keys=abcd", "--max_tokens 1024 --keys=abcd"),
        ("https://host/x?a=1&sig=abcd", f"https://host/x?a=1&sig={MASK}"),
        ("wandb login ab12cd x", f"wandb login {MASK} x"),
        ("wandb login --host http://x ab12cd", f"wandb login --host http://x {MASK}"),
        ("wandb login failed", "wandb login failed"),
        ("--use_wandb --seed 1", "--use_wandb --seed 1"),
        ("--chosen_key good --rejected_key bad", "--chosen_key good --rejected_key bad"),
        ("--data.image_key pic --messages-key m", "--data.image_key pic --messages-key m"),
        ("data.reward_fn_key=source", "data.reward_fn_key=source"),
        ("--eos_token <s> --ckpt.best_metric_key r", "--eos_token <s> --ckpt.best_metric_key r"),
        ("--my_chosen_api_key abcd", f"--my_chosen_api_key {MASK}"),
        ("['t.py', '--token', 'abcd', '-x']", f"['t.py', '--token', '{MASK}', '-x']"),
        ('["--hf-token", "ab cd"]', f'["--hf-token", "{MASK}"]'),
        ("('--apikey', 'abcd')", f"('--apikey', '{MASK}')"),
        ("['--wandb.key', 'abcd']", f"['--wandb.key', '{MASK}']"),
        (r"[\"--token\", \"abcd\"]", rf"[\"--token\", \"{MASK}\"]"),
        ("['--token=abcd', 'b']", f"['--token={MASK}', 'b']"),
        ('["--token","abcd","b"]', f'["--token","{MASK}","b"]'),
        ("{'hf_token': 'abcd'}", f"{{'hf_token': '{MASK}'}}"),
        ("['--chosen_key', 'good']", "['--chosen_key', 'good']"),
        ("['--use_wandb', '--seed', '1']", "['--use_wandb', '--seed', '1']"),
        ("{'pad_token': '<pad>', 'token': 5}", "{'pad_token': '<pad>', 'token': 5}"),
        ("columns ['token', 'text']", "columns ['token', 'text']"),
        ("""--password "it's my secret" x""", f"--password {MASK} x"),
        ("""['a', '--hf-token', "pa'ss"]""", f"""['a', '--hf-token', "{MASK}"]"""),
        (r"""['--token', 'a\'b"c', 'd']""", f"['--token', '{MASK}', 'd']"),
        (r'["--token", "a\"b", "d"]', f'["--token", "{MASK}", "d"]'),
        ("""--token='a b'"'"'c d' x""", f"--token={MASK} x"),
        (r"--token 'a b'\''c d' x", f"--token {MASK} x"),
        (r"--token $'a b\'c d' x", f"--token {MASK} x"),
        (r"--token a\ b x", f"--token {MASK} x"),
        (r'--token "a\"b c" x', f"--token {MASK} x"),
        ("--token 'a b", f"--token {MASK}"),
        ("['--token', 'a b\nnext", f"['--token', '{MASK}'\nnext"),
        ("['--token=a b', 'c']", f"['--token={MASK}', 'c']"),
        ("--token=-abcd x", f"--token={MASK} x"),
        ("(--token 'a b'), x", f"(--token {MASK}), x"),
        ('"run --token abcd", "x"', f'"run --token {MASK}", "x"'),
        ("the option '--token=' and --token", "the option '--token=' and --token"),
        ("HF_TOKEN=abcd run", f"HF_TOKEN={MASK} run"),
        ("the same ROLLCALL_TOKEN on all nodes", "the same ROLLCALL_TOKEN on all nodes"),
        ("http://me:abcd@head:5000/x", f"http://me:{MASK}@head:5000/x"),
        ("http://abcd@head:5000/x", f"http://{MASK}@head:5000/x"),
        ("git+https://abcd:@host/x.git", f"git+https://{MASK}:@host/x.git"),
        ("git clone ssh://git@host/x.git", "git clone ssh://git@host/x.git"),
        ("http://head:5000/x@y and me@z", "http://head:5000/x@y and me@z"),
        ("see http://head, or ask me@z", "see http://head, or ask me@z"),
        (f"run {SECRET}", f"run {MASK}"),
        *((text, text) for text in NAMED),
        ("--token MYTOKEN --key TOKEN1", f"--token {MASK} --key {MASK}"),
        ("--token '$ecret' --key $ab", f"--token {MASK} --key {MASK}"),
        ("http://me:MYPASSWORD@head", f"http://me:{MASK}@head"),
    ],
)
def test_a_shown_command_has_its_secrets_masked(text: str, expected: str) -> None:
    assert redact(text, [SECRET]) == expected


def test_a_command_line_that_is_kept_as_a_list_has_its_secrets_masked() -> None:
    short = ["login", "-p", "abcd", "-u", "me:abcd", "-p", "8000"]
    assert redact_all(short) == ["login", "-p", MASK, "-u", MASK, "-p", "8000"]
    assert redact_all(["mkdir", "-p", "out"]) == ["mkdir", "-p", "out"]
    words = ["t.py", "--token", "abcd", "--chosen_key", "good", "--wandb.key=efgh", "--key", "-x"]
    kept = redact_all({"argv": words, "api_key": "ijkl", "label_key": "answer", "token": None})
    masked = ["t.py", "--token", MASK, "--chosen_key", "good", f"--wandb.key={MASK}", "--key", "-x"]
    assert kept == {"argv": masked, "api_key": MASK, "label_key": "answer", "token": None}


def shell(*words: str) -> str:
    return shlex.join(["run", *words, "--seed", "1"])


def listed(*words: str) -> str:
    return str(["run", *words, "--seed", "1"])


def as_json(*words: str) -> str:
    return json.dumps(["run", *words, "--seed", "1"])


def as_json_in_json(*words: str) -> str:
    return json.dumps({"said": as_json(*words)})


def unquoted(text: str) -> str:
    return re.sub(r"""[\\"']""", "", text)


@settings(max_examples=400, deadline=None)
@given(secret=st.text(min_size=1) | st.text("'\"\\\\ ,=:-a\n])", min_size=1))
@example("it's my secret")
@example("""'"\\""")
def test_no_secret_of_any_characters_is_shown(secret: str) -> None:
    """What is shown is the same whatever the secret is."""
    assume(not is_placeholder(secret))
    for write in (shell, listed, as_json, as_json_in_json):
        for words in ((f"--hf-token={secret}",), ("--hf-token", secret)):
            if words[-1][0] == "-" and len(words) == 2:
                continue  # read as the next option
            if write is shell and secret[-1] == ",":
                continue  # a comma after a word is not masked
            if write is listed and {"'", '"'} <= set(secret):
                # Its escapes may be those of a shell, too: then more than the secret is masked.
                assert MASK in redact(write(*words))
                continue
            hidden = write(*words[:-1], words[-1].removesuffix(secret) + MASK)
            assert unquoted(redact(write(*words))) == unquoted(hidden)
    for text in (json.dumps({"hf_token": secret, "a": 1}), str({"hf_token": secret, "a": 1})):
        assert unquoted(redact(text)) == f"{{hf_token: {MASK}, a: 1}}"
    assert redact_all({"hf_token": secret}) == {"hf_token": MASK}


ISSUED = (
    "hf_" + "aB3" * 12,
    "wandb_v1_" + "x9" * 20,
    "ghp_" + "Z" * 36,
    "sk-proj-" + "q1" * 20,
    "rollcall-page-" + "0f" * 24,
)


@pytest.mark.parametrize("secret", ISSUED)
def test_a_token_that_says_what_it_is_is_masked_without_a_name(secret: str) -> None:
    assert redact(f"loading with {secret}, then") == f"loading with {MASK}, then"
    assert redact(f"https://x/{secret}/y") == f"https://x/{MASK}/y"


def test_bearers_and_addresses_of_webhooks_are_masked() -> None:
    assert redact(f"Authorization: Bearer {SECRET}==") == f"Authorization: Bearer {MASK}"
    hook = "https://hooks.slack.com/services/T0/B0/abc"
    assert redact(f"to {hook} went") == f"to https://hooks.slack.com/{MASK} went"


@pytest.mark.parametrize(
    "text", ["sk-learn", "the bearer of news", "hf_home", "a task-1234567890123456789012 ends"]
)
def test_words_that_only_begin_like_tokens_stay(text: str) -> None:
    assert redact(text) == text


def test_random_values_of_named_secrets_are_found_and_words_are_not() -> None:
    text = f"""--hf_token {SECRET} MY_KEY=prompt_of_a_certain_length '--token', 'x{SECRET}'
    {{"wandb_key": "y{SECRET}", "token": "abc1"}}"""
    assert named_secrets(text) == {SECRET, f"x{SECRET}", f"y{SECRET}"}


PARTS = (
    *(SECRET, f"hf_{'a1' * 16}", f"sk-{'b' * 24}", f"ghp_{'c' * 36}", "AKIAIOSFODNN7EXAMPLE"),
    *("-p ", "-u ", "'-p', '", "mkdir ", "me:pw", "-pwd", "8000"),
    *("--hf_token", "--Token ", "token=", "use_wandb =", "'--key', '", '"PASSWORD": "', "passwd"),
    *("wandb_key\t", "Webhook_URL=x", "abc", "a b", "'", '"', "\\", "=", " ", "-", ":", ",", ";"),
    *("\n", "\r", "\r\n", "https://me:pw@host/", "ssh://git@host", "://", "@", "x@y"),
    *("Bearer abcdefghijklmnopqrst", "hooks.slack.com/services/T0/B0/x", "task-3", "ſecret=", "İ"),
    *("X-Api-Key:", "HF_TOKEN: ", "Authorization:", "token ", "wandb login ", "?sig=", "ab12cd"),
    *("GH_PAT=", "PAT: ", "compat: ", "credentials: "),
    *("\u212aey=abc", "tokens/s", "eos_token=1", "ü", "\u2028", "rollcall-page-" + "0" * 48),
)
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_lines_are_masked_together_as_each_is_alone(text: str) -> None:
    alone = "".join(redact(line, [SECRET]) for line in LINE.findall(text))
    assert redact_lines(text, [SECRET]) == alone


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=6), st.randoms(use_true_random=False))
def test_output_that_comes_in_any_pieces_is_masked_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], dice: random.Random
) -> None:
    path = Path(tmp_path_factory.getbasetemp() / "pieces")
    whole = "\n".join(texts).encode()
    path.unlink(missing_ok=True)
    copy, at = Copy(path, lambda text: None, frozenset({SECRET})), 0
    while at < len(whole):
        size = dice.choice((1, 2, 7, 30, 500))
        copy.take(whole[at : at + size])
        at += size
    copy.close()
    assert path.read_bytes() == redact_lines(whole.decode(), [SECRET]).encode()


WORDS = (
    "key",
    "TOKEN",
    "_PASS",
    "-pass",
    "creds",
    "_CREDENTIALS",
    "auth",
    "-auth",
    "bypass",
    "_PAT",
)
FORMS = ("--{}{} {}", "{}{}={}", '"{}{}": "{}"', "Authorization: Bearer {2}", "x {0}{1} basic {2}")


@given(
    st.lists(
        st.tuples(st.sampled_from(FORMS), st.sampled_from(("", "a", "db")), st.sampled_from(WORDS)),
        max_size=4,
    )
)
def test_lines_with_any_secrets_name_are_masked_as_each_line_alone(
    lines: list[tuple[str, str, str]],
) -> None:
    text = "\n".join(form.format(begin, word, "s3cret-value") for form, begin, word in lines)
    assert redact_lines(text) == "\n".join(map(redact, text.split("\n")))


@pytest.mark.parametrize("name", ["DB_PASS", "SMTP_CREDENTIALS", "REGISTRY_AUTH", "GIT_CREDS"])
def test_variables_with_a_secrets_name_are_masked_wherever_they_are_quoted(name: str) -> None:
    hidden = secret_texts({name: "s3cret-value", "COMPASS": "north-east"})
    assert redact("it said s3cret-value, north-east", hidden) == f"it said {MASK}, north-east"
