"""Goal: a shell completes what the command takes, and nothing else. Method: real shells at a terminal, in which the
key is pressed; every command and option of the parser, looked up in the scripts."""

from __future__ import annotations

import pytest

from cystore.cli.host.grammar import nodes, settings
from cystore.cli.program import build_parser
from tests.support.cli.shells import SHELLS, Shell, fish_candidates, is_there

NO_SHELL = "this host does not have the shell"
# A line, and the line after the key. Beside the folders `store` and `other` there is a file `storage.txt`.
LINES = (
    ("cystore inf", "cystore info "),
    ("cystore topics del", "cystore topics delete "),
    ("cystore quarantine rest", "cystore quarantine restore "),
    ("cystore reset-", "cystore reset-offset "),
    ("cystore dump sto", "cystore dump store/"),
    ("cystore topics sto", "cystore topics store/"),
    ("cystore topics delete sto", "cystore topics delete store/"),
    ("cystore dump store --bo", "cystore dump store --body "),
    ("cystore dump store --body ba", "cystore dump store --body base64 "),
    ("cystore dump --body text sto", "cystore dump --body text store/"),
    ("cystore dump store --set flush_dis", "cystore dump store --set flush_disk_type="),
    ("cystore dump store --set flush_disk_type=sy", "cystore dump store --set flush_disk_type=sync "),
    ("cystore dump store --set read_only=t", "cystore dump store --set read_only=true "),
    ("cystore dump --set read_only=true sto", "cystore dump --set read_only=true store/"),
    ("cystore config store --unset file_res", "cystore config store --unset file_reserved_time_h "),
    ("cystore dump store --config sett", "cystore dump store --config settings.toml "),
    ("cystore metrics store oth", "cystore metrics store other/"),
    ("cystore completion fi", "cystore completion fish "),
    ("cystore put store orders --fl", "cystore put store orders --flush "),
    ("cystore info store --no-such", "cystore info store --no-such"),
    ("cystore --vers", "cystore --version "),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("place")
    for name in ("store", "other"):
        (made / name).mkdir()
    (made / "storage.txt").touch()
    (made / "settings.toml").touch()
    return made


def script_of(command, shell):
    path = command.folder / f"completion.{shell}"
    path.write_text(command.ok("completion", shell))
    return path


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.may_skip(NO_SHELL)
def test_a_line_is_completed(command, folder, tmp_path, shell):
    if not is_there(shell):
        pytest.skip(NO_SHELL)
    with Shell(shell, script_of(command, shell), folder, tmp_path) as typed:
        found = {line: typed.completed(line) for line, _ in LINES}
    assert found == dict(LINES)


@pytest.mark.may_skip(NO_SHELL)
def test_fish_offers_the_right_word(command, folder, tmp_path):
    if not is_there("fish"):
        pytest.skip(NO_SHELL)
    script = script_of(command, "fish")
    for line, completed in LINES:
        wanted = completed.rstrip(" ").rpartition(" ")[2]
        offered = fish_candidates(script, folder, tmp_path, line)
        assert offered == ({wanted} if completed != line else set()), line


@pytest.mark.parametrize("shell", [*SHELLS, "fish"])
def test_every_command_and_option_is_in_the_script(command, shell):
    text = command.ok("completion", shell)
    found = nodes(build_parser())
    assert len(found) > 40
    for node in found:
        assert " ".join(node.path) in text
        for name in [name for option in node.options for name in option.names]:
            assert name in text or f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')} " in text
    assert all(f" {name}" in text or f'"{name}' in text for name in settings())


def test_the_first_line_of_help_of_every_command_is_known():
    assert not [node.path for node in nodes(build_parser()) if node.path and not node.help]


def test_another_shell_is_refused(command):
    done = command.run("completion", "tcsh")
    assert done.returncode == 2 and "invalid choice" in done.stderr
