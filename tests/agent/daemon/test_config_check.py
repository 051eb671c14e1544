"""``penstock-agent check``: what a start would need, and nothing started."""

from __future__ import annotations

import pytest
from penstock.agent.daemon.config import resolve
from penstock.agent.daemon.config_check import CheckResult, check_config
from penstock.agent.daemon.main import main

from tests.support.agent.certificates import Authority


def findings(tmp_path, environment=None, **flags) -> list[CheckResult]:
    """Check a configuration in *tmp_path*."""
    return check_config(
        resolve(
            {
                "state-dir": str(tmp_path / "state"),
                "listen": f"unix://{tmp_path}/a.sock",
                "admin-listen": f"unix://{tmp_path}/b.sock",
                "state-limit": "32MiB",
                **flags,
            },
            environment or {},
        )
    )


def test_all_is_well(tmp_path):
    """Nothing is created."""
    assert findings(tmp_path) == [
        CheckResult(f"--state-dir {tmp_path}/state: can be written"),
        CheckResult(f"--listen unix://{tmp_path}/a.sock: can be made"),
        CheckResult(f"--admin-listen unix://{tmp_path}/b.sock: can be made"),
        CheckResult("traces: no OTEL_EXPORTER_OTLP_ENDPOINT, so they go nowhere"),
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_others_use(tmp_path, monkeypatch):
    """A link keeps the agent from starting; that others can write is said."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    assert not any("other users" in finding.text for finding in findings(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "elsewhere")
    link, others = findings(tmp_path)[:2]
    assert (link.wrong, others.wrong) == (True, False)
    assert link.text.endswith(f"{tmp_path}/state/lock is a symbolic link; remove it")
    assert "other users can write to it" in others.text


def test_what_is_wrong(tmp_path):
    """Places that are none, certificates that are not there."""
    (tmp_path / "file").touch()
    found = findings(
        tmp_path,
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4317",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.pem",
        },
        **{
            "state-dir": f"{tmp_path}/file/state",
            "listen": "127.0.0.1:0",
            "admin-listen": f"unix://{tmp_path}/file/b.sock",
        },
    )
    assert [finding.wrong for finding in found] == [True, False, True, True]
    assert found[0].text == f"--state-dir {tmp_path}/file/state: {tmp_path}/file is no directory"
    assert "TCP, every client that can connect can write" in found[1].text
    assert "No such file" in found[3].text


def test_a_name_that_no_file_can_have(tmp_path):
    """A sentence, no traceback."""
    first, *_ = findings(tmp_path, **{"state-dir": f"/tmp/{'x' * 300}"})
    assert first == CheckResult(f"--state-dir /tmp/{'x' * 300}: File name too long", wrong=True)


def test_certificates_of_the_admin_service(tmp_path):
    """What a start would refuse is said here."""
    authority = Authority(tmp_path / "ca")
    files = authority.issue("localhost")
    flags = {
        "admin-listen": "127.0.0.1:0",
        "admin-tls-cert": str(files.cert),
        "admin-tls-key": str(files.key),
        "admin-tls-client-ca": str(authority.cert),
        "admin-allow": "ops=write",
    }
    assert CheckResult(f"--admin-tls-cert {files.cert}: fits its key") in findings(tmp_path, **flags)
    wrong = [each for each in findings(tmp_path, **{**flags, "admin-tls-key": "/nowhere"}) if each.wrong]
    assert [each.text for each in wrong] == ["--admin-tls-key '/nowhere' is no file; name a PEM file"]


def test_what_the_trace_variables_do(tmp_path):
    """A variable without effect is named, and so is what a sampler leaves out."""
    found = findings(
        tmp_path,
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
            "OTEL_LOG_LEVEL": "debug",
        },
    )
    assert found[-3:] == [
        CheckResult("OTEL_LOG_LEVEL has no effect: --log-level sets the level of the agent's log"),
        CheckResult("traces: to http://collector:4317 over grpc"),
        CheckResult(
            "traces: traceidratio at 0.1 where no policy sets traceSampleRatio;"
            " failed, recomputed and long-deferred requests always"
        ),
    ]


def test_a_disk_smaller_than_the_limit_is_reported(tmp_path):
    """It is not wrong: the disk may grow."""
    (first, *_) = findings(tmp_path, **{"state-limit": "9000TiB"})
    assert not first.wrong
    assert "it may fill before the limit holds" in first.text


@pytest.mark.parametrize(("state", "code"), [("state", 0), ("file/state", 2)])
def test_the_command(tmp_path, monkeypatch, capsys, state, code):
    """One line for each finding; flags may stand on both sides of the word."""
    (tmp_path / "file").touch()
    sockets = [f"--listen=unix://{tmp_path}/a.sock", f"--admin-listen=unix://{tmp_path}/b.sock"]
    arguments = [
        "penstock-agent",
        *sockets,
        "check",
        f"--state-dir={tmp_path}/{state}",
        "--state-limit=32MiB",
    ]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["wrong" if code else "ok", "ok", "ok", "ok"]


def test_a_configuration_that_is_none(monkeypatch, capsys):
    """The sentence of a start."""
    monkeypatch.setattr("sys.argv", ["penstock-agent", "check", "--http=x", "--on-fatal=idle"])
    monkeypatch.setenv("PENSTOCK_AGENT_ON_FATAL", "idle")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--http 'x' is wrong" in capsys.readouterr().err
