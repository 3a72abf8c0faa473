"""Man pages and completions are those that the commands give, and they read well."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coldstart_cli.config import SETTINGS, environment_reference
from coldstart_cli.errors import ExitCode
from coldstart_cli.tree import TREE, walk_commands
from conftest import REPOSITORY, Coldstart

COMMANDS = [words for words, _ in walk_commands(TREE)]
PAGES = sorted((REPOSITORY / "man").rglob("*.[15]"))
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def generate(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, repository / "tools" / "generate.py", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The generator and what it wrote, in a place where they may be changed."""
    for name in ("tools", "man", "completions", "docs"):
        shutil.copytree(REPOSITORY / name, tmp_path / "copy" / name)
    return tmp_path / "copy"


@functools.cache
def rendered(page: Path) -> str:
    result = subprocess.run(
        ["man", "-l", page],
        env={**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "MANPAGER": "cat", "PAGER": "cat"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    return re.sub(r".\x08|\x1b\[[\d;]*m", "", result.stdout.decode())


def page_of(words: tuple[str, ...]) -> Path:
    return REPOSITORY / "man" / "man1" / ("-".join(("coldstart", *words)) + ".1")


def page_section(page: Path, title: str) -> str:
    return page.read_text().partition(f'.SH "{title}"')[2].partition(".SH ")[0]


def test_the_committed_files_are_up_to_date() -> None:
    result = generate(REPOSITORY, "--check")
    assert result.returncode == 0, result.stderr


def test_a_stale_a_missing_and_a_strange_file_are_named_with_the_remedy(copy: Path) -> None:
    stale = copy / "man" / "man1" / "coldstart.1"
    stale.write_text(stale.read_text() + "\n")
    (copy / "completions" / "_coldstart").unlink()
    (copy / "man" / "man1" / "coldstart-gone.1").touch()
    result = generate(copy, "--check")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "completions/_coldstart is missing",
        "man/man1/coldstart.1 does not match the commands",
        "man/man1/coldstart-gone.1 belongs to no command",
        "run `make generate` and commit the result",
    ]
    assert generate(copy).returncode == 0
    assert generate(copy, "--check").returncode == 0


def test_every_command_has_a_page_and_every_page_a_command() -> None:
    expected = {page_of(words).name for words in COMMANDS} | {"coldstart.1", "coldstart.toml.5"}
    assert {page.name for page in PAGES} == expected


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_and_page_have_the_same_options(coldstart: Coldstart, words: tuple[str, ...]) -> None:
    shown = coldstart(*words, "--help").stdout.partition("Options:")[2]
    starts = [line for line in shown.splitlines() if re.match(r"  -", line)]
    in_help = {option for line in starts for option in OPTION.findall(re.split(r"\s{2,}", line.strip())[0])}
    source = page_section(page_of(words), "OPTIONS").replace("\\-", "-").replace("\\fB", "")
    terms = re.findall(r"^\.TP\n(.*)$", source, flags=re.MULTILINE)
    assert {option for term in terms for option in OPTION.findall(term.replace("\\fR", " "))} == in_help
    assert "--help" in in_help


def test_examples_use_options_that_exist() -> None:
    used = 0
    for words in COMMANDS:
        page = page_of(words)
        options = set(OPTION.findall(page_section(page, "OPTIONS").replace("\\-", "-").replace("\\fB", " ")))
        for line in page_section(page, "EXAMPLES").replace("\\-", "-").replace("\\e\n", " ").splitlines():
            if line.startswith(" ".join(("coldstart", *words))):
                used += 1
                assert set(OPTION.findall(line.partition("|")[0])) <= options, line
    assert used >= len(COMMANDS) - 1


def test_the_main_page_lists_every_exit_status_and_variable() -> None:
    source = (REPOSITORY / "man" / "man1" / "coldstart.1").read_text()
    for code in ExitCode:
        assert f"\n\\fB{int(code)}\\fR\n" in source
    for variable, _ in environment_reference():
        assert f"\n\\fB{variable}\\fR\n" in source


def test_the_settings_page_lists_every_setting_with_its_variable() -> None:
    source = (REPOSITORY / "man" / "man5" / "coldstart.toml.5").read_text()
    for setting in SETTINGS:
        assert f"\\fB{setting.key}\\fR" in source
        assert f"\\fB{setting.variable}\\fR" in source
    # the same text on every host, whoever generates it
    assert "\\fB\\(dq/var/lib/coldstart\\(dq\\fR for root" in source.replace("\n", " ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_renders_without_a_warning(page: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    result = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-Kutf8", "-z", page],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_page_reads_well_in_man() -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    text = rendered(page_of(("pool", "plan")))
    assert "coldstart pool plan --prices FILE --supply FILE --demand FILE [OPTIONS]" in text
    assert "coldstart-pool-plan - buffer sizes per offer" in text
    assert not re.search(r"\\[a-z(]", text.replace("\\\n", "")), "an escape was printed as text"
