"""mosquitto_pub and mosquitto_sub, as people use them in their first five minutes."""

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import StartBus
from tests.e2e.processes import Program, Served, polybus, run, unique

pytestmark = pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="mosquitto-clients is not installed")
both_versions = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])


def publish(bus: Served, topic: str, *arguments: str, kind: str = "tcp") -> None:
    done = run("mosquitto_pub", *_address(bus, kind), "-t", topic, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


def subscriber(bus: Served, folder: Path, topic: str, *arguments: str, kind: str = "tcp") -> Program:
    """It says when it is subscribed; messages come as ``>topic qos retained payload``."""
    # Line by line, also into a file.
    command = ["stdbuf", "-oL", "mosquitto_sub", *_address(bus, kind), "-t", topic, "-d", "-F", ">%t %q %r %p"]
    return Program([*command, *arguments], folder)


def messages(program: Program) -> list[str]:
    return re.findall(r"^>(.*)$", program.output, re.M)


def _address(bus: Served, kind: str) -> list[str]:
    if kind == "unix":
        return ["--unix", str(bus.socket_path)]
    address = ["-h", "127.0.0.1", "-p", str(bus.ports[kind])]
    return [*address, "--cafile", bus.authority] if kind == "tls" else address


@both_versions
@pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
def test_every_qos(bus: Served, tmp_path: Path, version: str, kind: str) -> None:
    topic = unique()
    with subscriber(bus, tmp_path, topic, "-q", "2", "-V", version, "-C", "3", kind=kind) as sub:
        sub.wait_for("Subscribed")
        for qos in "012":
            publish(bus, topic, "-m", f"hello {qos}", "-q", qos, "-V", version, kind=kind)
        assert sub.wait() == 0
    assert messages(sub) == [f"{topic} {qos} 0 hello {qos}" for qos in "012"]


def test_versions_talk_to_each_other(bus: Served, tmp_path: Path) -> None:
    topic = unique()
    with (
        subscriber(bus, tmp_path, topic, "-V", "mqttv311", "-q", "1") as old,
        subscriber(bus, tmp_path, topic, "-V", "mqttv5", "-q", "1") as new,
        subscriber(bus, tmp_path, topic, "-V", "mqttv31", "-q", "1") as ancient,
    ):
        for sub in (old, new, ancient):
            sub.wait_for("Subscribed")
        for version in ("mqttv31", "mqttv311", "mqttv5"):
            publish(bus, topic, "-m", version, "-q", "1", "-V", version)
        for sub in (old, new, ancient):
            sub.wait_for("mqttv5\n")
            assert messages(sub) == [f"{topic} 1 0 {version}" for version in ("mqttv31", "mqttv311", "mqttv5")]


def test_many_lines(bus: Served, tmp_path: Path) -> None:
    topic = unique()
    with subscriber(bus, tmp_path, topic, "-q", "1", "-C", "2000") as sub:
        sub.wait_for("Subscribed")
        lines = "".join(f"{n}\n" for n in range(2000))
        address = _address(bus, "tcp")
        assert run("mosquitto_pub", *address, "-t", topic, "-l", "-q", "1", stdin=lines).returncode == 0
        assert sub.wait() == 0
    assert messages(sub) == [f"{topic} 1 0 {n}" for n in range(2000)]


@both_versions
def test_retained(bus: Served, tmp_path: Path, version: str) -> None:
    topic = unique()
    publish(bus, topic, "-m", "kept", "-r", "-q", "1", "-V", version)
    with subscriber(bus, tmp_path, topic, "-V", version, "-C", "1") as sub:
        assert sub.wait() == 0
    assert messages(sub) == [f"{topic} 0 1 kept"]
    publish(bus, topic, "-n", "-r", "-q", "1")
    with subscriber(bus, tmp_path, topic, "-V", version, "-C", "1") as sub:
        sub.wait_for("Subscribed")
        publish(bus, topic, "-m", "live")
        assert sub.wait() == 0
    assert messages(sub) == [f"{topic} 0 0 live"]


@both_versions
def test_the_will_of_a_client_that_is_killed(bus: Served, tmp_path: Path, version: str) -> None:
    topic = unique()
    will = ["--will-topic", topic, "--will-payload", "gone", "--will-qos", "1"]
    with (
        subscriber(bus, tmp_path, topic, "-q", "1", "-C", "1") as watcher,
        subscriber(bus, tmp_path, unique(), *will, "-V", version) as dying,
        subscriber(bus, tmp_path, unique(), *will, "-V", version) as polite,
    ):
        for program in (watcher, dying, polite):
            program.wait_for("Subscribed")
        polite.process.send_signal(signal.SIGTERM)  # it says DISCONNECT: no will
        polite.wait()
        dying.process.kill()
        assert watcher.wait() == 0
    assert messages(watcher) == [f"{topic} 1 0 gone"]


@both_versions
def test_a_kept_session(bus: Served, tmp_path: Path, version: str) -> None:
    topic, client_id = unique(), unique("c")
    kept = ["-c", "-i", client_id, "-q", "2", "-V", version]
    with subscriber(bus, tmp_path, topic, *kept, "-E") as first:
        assert first.wait() == 0
    for qos in "012":
        publish(bus, topic, "-m", f"while away {qos}", "-q", qos)
    with subscriber(bus, tmp_path, topic, *kept, "-C", "2") as second:
        assert second.wait() == 0
    assert messages(second) == [f"{topic} {qos} 0 while away {qos}" for qos in "12"]


def test_the_certificate_is_checked(bus: Served) -> None:
    stranger = str(bus.certificates.cert("stranger-ca"))
    address = ["-h", "127.0.0.1", "-p", str(bus.ports["tls"]), "--cafile", stranger]
    assert run("mosquitto_pub", *address, "-t", "x", "-m", "y").returncode != 0


def test_sys_topics(bus: Served, tmp_path: Path) -> None:
    with subscriber(bus, tmp_path, "$SYS/#") as sub:
        sub.wait_for(">$SYS/broker/version 0 1 polybus ")
        sub.wait_for(">$SYS/broker/clients/connected 0 ")


def test_passwords_and_rules(start_bus: StartBus, tmp_path: Path) -> None:
    users = tmp_path / "users"
    for name in ("alice", "bob"):
        assert polybus("passwd", users, name, "--stdin", stdin=f"{name}-secret\n").returncode == 0
    bus = start_bus(
        f'[auth]\npassword_file = "{users}"\n'
        '[[acl]]\nuser = "*"\ntopic = "home/%u/#"\n'
        '[[acl]]\nuser = "alice"\ntopic = "all/#"\n'
        '[[acl]]\nuser = "bob"\ntopic = "all/#"\naction = "subscribe"\n'
    )

    def login(name: str, password: str | None = None) -> list[str]:
        return ["-u", name, "-P", f"{name}-secret" if password is None else password]

    address = _address(bus, "tcp")
    for wrong in ([], login("alice", "wrong"), login("eve"), login("alice", "")):
        for version in ("mqttv311", "mqttv5"):
            refused = run("mosquitto_pub", *address, "-t", "all/x", "-m", "no", "-V", version, *wrong)
            assert refused.returncode != 0
            assert "not authori" in refused.stderr.lower() or "bad user" in refused.stderr.lower()
    with (
        subscriber(bus, tmp_path, "all/#", *login("bob"), "-q", "1") as bob,
        subscriber(bus, tmp_path, "home/alice/#", *login("bob"), "-V", "mqttv5") as nosy,
        subscriber(bus, tmp_path, "home/alice/#", *login("alice"), "-q", "1", "-C", "1") as alice,
    ):
        bob.wait_for("Subscribed")
        nosy.wait_for("Subscribed (mid: 1): 135")
        alice.wait_for("Subscribed")
        denied = run(
            "mosquitto_pub", *address, "-t", "all/x", "-m", "bob", "-q", "1", "-V", "mqttv5", *login("bob")
        )
        assert "Not authorized" in denied.stdout + denied.stderr
        publish(bus, "all/x", "-m", "alice", "-q", "1", *login("alice"))
        publish(bus, "home/alice/lamp", "-m", "on", "-q", "1", *login("alice"))
        bob.wait_for(">all/x 1 0 alice")
        assert messages(bob) == ["all/x 1 0 alice"]
        assert alice.wait() == 0
        assert messages(alice) == ["home/alice/lamp 1 0 on"]
        assert messages(nosy) == []
    bus.check_health()
