from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_launch.spec import load_spec

MINIMAL = 'schema = "coldstart.spec"\nversion = 1\nname = "ocr"\nimage = "ocr:1"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text)
    return path


def test_a_minimal_specification_takes_everything_else_from_the_image(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, MINIMAL))
    assert (spec.name, spec.image, spec.command, spec.network) == ("ocr", "ocr:1", (), "host")
    assert spec.ready.url is None
    assert spec.snapshot == "ocr"


def test_every_key_reaches_its_field(tmp_path: Path) -> None:
    text = MINIMAL + (
        'command = ["serve", "--port", "1"]\nworking_directory = "/srv"\nuser = "1000:1000"\n'
        'network = "none"\n'
        '[environment]\nA = "b"\n[ready]\nurl = "http://127.0.0.1:1/health"\ntimeout_seconds = 7\n'
        '[snapshot]\nname = "other"\n[[mounts]]\nsource = "/usr"\ndestination = "/in"\nread_only = false\n'
    )
    spec = load_spec(write(tmp_path, text))
    assert spec.command == ("serve", "--port", "1")
    assert dict(spec.environment) == {"A": "b"}
    assert (spec.working_directory, spec.user, spec.network) == ("/srv", "1000:1000", "none")
    assert (spec.ready.url, spec.ready.timeout_seconds) == ("http://127.0.0.1:1/health", 7.0)
    assert spec.snapshot == "other"
    assert (spec.mounts[0].source, spec.mounts[0].destination, spec.mounts[0].read_only) == (
        Path("/usr"),
        "/in",
        False,
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "schema must be"),
        ('schema = "coldstart.plan"\nversion = 1\n', "schema must be"),
        (
            MINIMAL.replace("version = 1", "version = 2"),
            "version 2 is newer",
        ),
        (MINIMAL.replace("version = 1", 'version = "1"'), "version must be a whole number"),
        (MINIMAL.replace('name = "ocr"', 'name = "../x"'), "name is not usable"),
        (MINIMAL.replace('image = "ocr:1"', ""), "missing key: image"),
        (MINIMAL + "comand = []\n", "unknown key: comand"),
        (MINIMAL + 'command = "serve"\n', "command must be a list of texts"),
        (MINIMAL + 'network = "bridge"\n', "network must be one of"),
        (MINIMAL + '[ready]\nurl = "ftp://x"\n', "http or https"),
        (MINIMAL + '[ready]\nurl = "http://127.0.0.1:99999/"\n', "http or https"),
        (MINIMAL + '[ready]\nurl = "http://[::1/"\n', "http or https"),
        (MINIMAL + f'[ready]\nurl = "http://{"a" * 70}/"\n', "http or https"),
        (MINIMAL + 'command = [""]\n', "must begin with a program"),
        (MINIMAL + 'working_directory = "srv"\n', "must be absolute"),
        (MINIMAL + '[[mounts]]\nsource = "/"\ndestination = "/."\n', "not be the whole root"),
        (MINIMAL + '[[mounts]]\nsource = "/absent-folder"\ndestination = "/in"\n', "does not exist"),
        (MINIMAL + "[ready]\ntimeout_seconds = nan\n", "positive number"),
        (MINIMAL + "[ready]\ntimeout_seconds = true\n", "positive number"),
        (MINIMAL + "[environment]\nA = 1\n", "environment.A must be a text"),
        (MINIMAL + '[[mounts]]\nsource = "data"\ndestination = "/in"\n', "must be absolute"),
        (MINIMAL + '[[mounts]]\nsource = "/data"\ndestination = "/in/../.."\n', "must be absolute"),
        ("schema = [", "not valid TOML"),
    ],
)
def test_a_wrong_specification_is_refused_by_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=complaint) as caught:
        load_spec(path)
    assert str(path) in caught.value.message


def test_a_mistyped_key_gets_the_near_match(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_spec(write(tmp_path, MINIMAL + "comand = []\n"))
    assert caught.value.hint == "did you mean `command`?"


def test_a_specification_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        load_spec(tmp_path / "absent.toml")


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/fd/0", "pipe"])
def test_what_is_no_regular_file_is_refused_as_a_specification(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"specification cannot be used: .*: not a regular file"):
        load_spec(tmp_path / path)
