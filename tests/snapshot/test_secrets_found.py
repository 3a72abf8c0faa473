"""Secrets are found by their names, never repeated, and what only looks like one is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coldstart_snapshot.processes.secrets_found import (
    exposed_secrets,
    is_secret_name,
    redact_arguments,
    redact_url,
    secret_arguments,
    secret_variables,
)
from coldstart_snapshot.processes.tree import process_tree
from conftest import wait_until


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "--api-key",
        "--hf-token",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "-password",
        "AWS_SESSION_TOKEN",
        "apiKey",
        "HUGGING_FACE_HUB_TOKEN",
        "DB_PASSWORD",
        "MYSQL_PWD",
        "WANDB_API_KEY",
        "TOKEN_CI",
        "PGPASS",
        "DB_PASS",
        "AUTH",
        "BEARER",
        "JWT",
        "COOKIE",
        "SAS",
        "AZURE_STORAGE_CONNECTION_STRING",
        "-p",
        "--pass",
        "--auth",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "--max-tokens",
        "TOKENIZERS_PARALLELISM",
        "--tokenizer",
        "PWD",
        "KEYBOARD",
        "--model",
        "SSH_AUTH_SOCK",
        "",
        "--ssl-keyfile",
        "HF_TOKEN_PATH",
        "PASSWORD_FILE",
        "--key-cache",
        "MONKEY",
        "COLDSTART_RANDOM_SEED",
        "P",
        "OLDPWD",
        "--bypass",
        "--disable-auth",
        "AUTH_MODE",
        "TOKEN_LIMIT",
        "--skip-special-tokens",
    ],
)
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["serve", "--api-key", "sk-1", "m"], "serve --api-key [redacted] m"),
        (["serve", "--api-key=sk-1"], "serve --api-key=[redacted]"),
        (["env", "HF_TOKEN=hf_x", "serve"], "env HF_TOKEN=[redacted] serve"),
        (["serve", "--max-token", "100", "--token", "5"], "serve --max-token 100 --token 5"),
        (["serve", "--password", "--verbose"], "serve --password --verbose"),
        (["x", "postgres://me:pw@db/x"], "x postgres://me:[redacted]@db/x"),
        (["curl", "-H", "Authorization: Bearer abc"], "curl -H Authorization: Bearer [redacted]"),
        (["db", "-p", "geheim", "--auth", "me:x"], "db -p [redacted] --auth [redacted]"),
        (["serve", "-p", "8000", "m"], "serve -p 8000 m"),
        (["run", "-p", "8000:8000", "-p", "/srv"], "run -p 8000:8000 -p /srv"),
        (["x", "http://h/?api_key=sk-1&n=2"], "x http://h/?api_key=[redacted]&n=2"),
        (["serve", "http://127.0.0.1:8000/a@b"], "serve http://127.0.0.1:8000/a@b"),
    ],
)
def test_values_of_secrets_are_left_out_of_command_lines(arguments: list[str], shown: str) -> None:
    assert " ".join(redact_arguments(arguments)) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:8000/health", "http://h:8000/health"),
        ("http://h/health?api_key=sk-1&deep=yes", "http://h/health?api_key=[redacted]&deep=yes"),
        ("http://h/?max_tokens=many&token=abc#top", "http://h/?max_tokens=many&token=[redacted]#top"),
        ("https://a.blob/x?sv=1&sig=a%2Fb", "https://a.blob/x?sv=1&sig=[redacted]"),
        ("http://me:pw@h/?key=k", "http://me:[redacted]@h/?key=[redacted]"),
    ],
)
def test_urls_are_shown_without_their_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_a_processs_secrets_are_named_and_its_command_says_none() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "--api-key", "sk-very-secret"],
        env={"HF_TOKEN": "hf_very_secret", "DATABASE": "postgres://me:very-secret@db/x", "MODE": "fast"},
    ) as process:
        try:
            wait_until(
                lambda: b"sk-very" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), "it to be started"
            )
            (member,) = process_tree(process.pid)
            assert "--api-key [redacted]" in member.command
            assert "very" not in member.command
            bundle = {"process": {"env": ["NGC_API_KEY=x", "A=b"], "args": ["serve"]}}
            found = exposed_secrets([process.pid], bundle)
            assert found == ("--api-key", "DATABASE", "HF_TOKEN", "NGC_API_KEY")
        finally:
            process.kill()


def test_secret_variables_are_known_by_name_or_by_a_password_in_a_url() -> None:
    environment = {
        "HF_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "OPENAI_API_KEY": "x",
        "DATABASE": "postgres://me:pw@db/x",
        "EMPTY_TOKEN": "",
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_TOKENS": "5",
        "KEYBOARD": "us",
        "PATH": "/bin",
    }
    assert secret_variables(environment) == (
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE",
        "HF_TOKEN",
        "OPENAI_API_KEY",
    )


def test_options_with_secrets_are_named_in_their_order() -> None:
    arguments = ["serve", "--hf-token=x", "--api-key", "y", "--max-tokens", "5", "redis://u:p@h/0"]
    assert secret_arguments(arguments) == ("--hf-token", "--api-key", "password in a URL")
