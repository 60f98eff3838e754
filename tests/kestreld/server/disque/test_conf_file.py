"""disque.conf: what it says, what is wrong in it, and what CONFIG REWRITE makes of it."""

from pathlib import Path

import pytest

from kestreld.errors import ConfigError
from kestreld.files import FileLayer
from kestreld.server.disque.conf_file import DisqueConf
from kestreld.server.disque.settings import DisqueSettings


def conf_of(folder: Path, text: str, *options: tuple[str, list[bytes]]) -> DisqueConf:
    path = folder / "disque.conf"
    path.write_text(text)
    return DisqueConf(FileLayer(), str(folder), str(path), options)


def settings_of(conf: DisqueConf) -> DisqueSettings:
    """The parameters of a node that was started with it."""
    settings = DisqueSettings(7711, "/dir")
    found, problems = conf.read(settings)
    assert problems == []
    for name, value in found:
        settings.set(name, value)
    return settings


def rewritten(folder: Path, text: str, **changes: bytes) -> str:
    """The file once CONFIG REWRITE has written what CONFIG SET has changed; it says what is set then."""
    conf = conf_of(folder, text)
    settings = settings_of(conf)
    for name, value in changes.items():
        settings.set(name.replace("_", "-").encode(), value)
    assert conf.write(settings) == ""
    again = settings_of(DisqueConf(FileLayer(), str(folder), str(folder / "disque.conf")))
    for name, value in changes.items():
        assert again[name.replace("_", "-").encode()] == value
    assert not (folder / "disque.conf.new").exists()
    return (folder / "disque.conf").read_text()


def problems_of(folder: Path, text: str, *options: tuple[str, list[bytes]]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        conf_of(folder, text, *options)
    return [str(problem).removeprefix(f"{folder}/") for problem in raised.value.problems]


def test_a_file_is_read_as_redis_reads_one(tmp_path: Path) -> None:
    conf = conf_of(
        tmp_path, '  # a comment\r\n\n\tPort 7712\r\nLOGFILE ""\nrequirepass \'it\\\'s "x"\'\nmaxmemory 2GB\n'
    )
    assert conf.text(b"port") == "7712"
    assert conf.words(b"logfile") == (b"",)
    settings = settings_of(conf)
    assert settings[b"requirepass"] == b'it\'s "x"'
    assert settings[b"maxmemory"] == b"2147483648"


def test_the_last_of_several_counts_and_an_option_more_than_the_file(tmp_path: Path) -> None:
    text = "hz 20\nhz 30\nmaxmemory 1mb\nbind 127.0.0.1 ::1\n"
    conf = conf_of(tmp_path, text, ("maxmemory", [b"3mb"]), ("port", [b"1"]), ("port", [b"2"]))
    settings = settings_of(conf)
    assert (settings[b"hz"], settings[b"maxmemory"], settings[b"port"]) == (b"30", b"3145728", b"2")
    assert conf.words(b"bind") == (b"127.0.0.1", b"::1")


def test_every_mistake_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("\nxyzzy bar\n")
    lines = [
        "port 7711", "prot 1", "port 99999", "port 1 2", "appendonly maybe", "include more.conf", "include gone.conf",
        'logfile "x', "requirepass a b", "# rename-command", "dir",
    ]  # fmt: skip
    assert problems_of(tmp_path, "\n".join(lines), ("xyzzy", []), ("hz", [])) == [
        "disque.conf:2: unknown directive 'prot'; did you mean port?",
        "disque.conf:3: port: invalid value '99999'",
        "disque.conf:4: port: invalid value '1 2'",
        "disque.conf:5: appendonly: invalid value 'maybe'",
        "more.conf:2: unknown directive 'xyzzy'",
        f"disque.conf:7: {tmp_path}/gone.conf: No such file or directory",
        "disque.conf:8: unbalanced quotes",
        "disque.conf:9: requirepass: invalid value",
        "disque.conf:11: dir: a value is missing",
        "--xyzzy: unknown directive 'xyzzy'",
        "--hz: a value is missing",
    ]


def test_files_that_include_one_another_are_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "include disque.conf\n")
    assert problem.endswith("disque.conf:1: include: more than 16 files include one another")


def test_directives_that_mean_nothing_here_are_listed_once(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, "hz 10\nport 7711\nsyslog-enabled no\nhz 20\n")
    assert conf.without_effect() == [f"hz ({tmp_path}/disque.conf:1)", f"syslog-enabled ({tmp_path}/disque.conf:3)"]


def test_paths_are_relative_to_dir_and_dir_to_the_working_directory(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, "dir ./data/../jobs\nappendfilename old.aof\n")
    assert conf.dir == f"{tmp_path}/jobs"
    assert conf.aof_path == f"{tmp_path}/jobs/old.aof"


def test_a_rewrite_of_what_has_not_changed_changes_nothing(tmp_path: Path) -> None:
    text = (
        "# mine\n\nhz 10\nmaxmemory 1gb\n   tcp-keepalive   60\nclient-output-buffer-limit normal 0 0 0\nappendonly no"
    )
    assert rewritten(tmp_path, text) == text


def test_a_rewrite_keeps_lines_and_their_order_and_appends_what_differs_from_the_default(tmp_path: Path) -> None:
    text = "# mine\nhz 5\nport 7711\nhz 10\n\n# memory\nmaxmemory 1gb\nloglevel verbose\n\n"
    assert rewritten(
        tmp_path, text, hz=b"20", maxmemory=b"2097152", loglevel=b"notice", timeout=b"30", appendfsync=b"everysec"
    ) == (
        "# mine\nhz 5\nport 7711\nhz 20\n\n# memory\nmaxmemory 2097152\nloglevel notice\n"
        "# Added by CONFIG REWRITE\ntimeout 30\n"
    )


def test_a_second_rewrite_appends_below_the_first_and_changes_what_that_has_appended(tmp_path: Path) -> None:
    text = rewritten(tmp_path, "port 7711\n", timeout=b"30")
    assert rewritten(tmp_path, text, timeout=b"0", hz=b"11") == (
        "port 7711\n# Added by CONFIG REWRITE\ntimeout 0\nhz 11\n"
    )


@pytest.mark.parametrize("value", [b"", b"two words", b"\"'\\", b"#x", b"a\nb\r\tc", bytes(range(256)), b"plain"])
def test_values_are_quoted_where_they_must_be(tmp_path: Path, value: bytes) -> None:
    text = rewritten(tmp_path, "requirepass old\n", requirepass=value)
    assert len(text.splitlines()) == 1
    assert ('"' in text) == (value != b"plain")


def test_what_an_included_file_says_is_overridden_by_an_appended_line(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("hz 10\n")
    text = "hz 5\ninclude more.conf\n"
    assert rewritten(tmp_path, text, hz=b"7") == f"{text}# Added by CONFIG REWRITE\nhz 7\n"
    assert (tmp_path / "more.conf").read_text() == "hz 10\n"


def test_limits_of_output_are_those_of_one_class(tmp_path: Path) -> None:
    value = settings_of(conf_of(tmp_path, "hz 10\n")).check(
        b"client-output-buffer-limit", b"normal 9 9 9 NORMAL 1mb 1mb 9"
    )
    assert value == b"NORMAL 1mb 1mb 9"
    line = "client-output-buffer-limit NORMAL 1mb 1mb 9\n"
    for text in ("client-output-buffer-limit normal 0 0 0\n", ""):
        added = "" if text else "# Added by CONFIG REWRITE\n"
        assert rewritten(tmp_path, text, client_output_buffer_limit=value) == added + line
    with pytest.raises(ConfigError, match=r"disque\.conf:1: client-output-buffer-limit: invalid value 'slave 0 0 0'"):
        conf_of(tmp_path, "client-output-buffer-limit slave 0 0 0\n")


def test_options_of_the_command_line_are_kept_by_a_rewrite(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, "port 7711\n", ("port", [b"7712"]), ("bind", [b"127.0.0.1", b"::1"]), ("hz", [b"10"]))
    assert conf.write(settings_of(conf)) == ""
    assert (tmp_path / "disque.conf").read_text() == "port 7712\n# Added by CONFIG REWRITE\nbind 127.0.0.1 ::1\n"


def test_a_rewrite_keeps_the_mode_of_the_file_and_the_link_that_leads_to_it(tmp_path: Path) -> None:
    real = tmp_path / "real.conf"
    real.write_text("hz 10\n")
    real.chmod(0o640)
    (tmp_path / "disque.conf").symlink_to(real)
    conf = DisqueConf(FileLayer(), str(tmp_path), str(tmp_path / "disque.conf"))
    settings = settings_of(conf)
    settings.set(b"hz", b"50")
    assert conf.write(settings) == ""
    assert real.read_text() == "hz 50\n"
    assert real.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "disque.conf").is_symlink()


def test_a_rewrite_that_cannot_be_says_why_and_leaves_the_file(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, "hz 10\n")
    settings = settings_of(conf)
    settings.set(b"hz", b"50")
    (tmp_path / "disque.conf").write_text("nonsense here\n")
    assert "unknown directive 'nonsense'" in conf.write(settings)
    assert (tmp_path / "disque.conf").read_text() == "nonsense here\n"
    (tmp_path / "disque.conf").unlink()
    assert conf.write(settings) == "Rewriting config file: No such file or directory"
