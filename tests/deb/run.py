#!/usr/bin/env python3
"""The Debian package: what lintian says, and that it can be installed, used, removed and purged without leaving anything behind.

    tests/deb/run.py [PACKAGE]          default: target/beeline_*.deb, which `make deb` makes

It is installed into this host as seen through an overlay: in a mount namespace of its own, in which all that is written goes into
memory. What is left after the purge is what stands there. Takes root. The worked examples in packaging/oci are looked through, too.
"""

import filecmp
import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What dpkg and the tools that it calls keep for themselves; contents that are as before are no trace either.
TOOLS = ("var/lib/dpkg", "var/log", "var/cache", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock",
         "etc/subuid-", "etc/subgid-", "run", "dev", "proc", "sys")
COMPLETIONS = ["usr/share/bash-completion/completions/beeline", "usr/share/zsh/vendor-completions/_beelined",
               "usr/share/fish/vendor_completions.d/beelined.fish"]
TALK = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
for size in (1, 1000, 100000):
    sender = threading.Thread(target=client.sendall, args=(b"x" * size,))
    sender.start()
    assert len(server.recv(size, socket.MSG_WAITALL)) == size
    sender.join()
print("talked")
import subprocess, sys
sys.stdout.write(subprocess.run(["beeline", "stat"], capture_output=True, text=True).stdout)
"""


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def step(sentence):
    print(f"ok    {sentence}", flush=True)


def left(upper):
    """What a layer has that the host does not have in the same form."""
    found = []
    for directory, directories, files in os.walk(upper):
        inside = os.path.relpath(directory, upper)
        directories[:] = [name for name in directories if os.path.join(inside, name).removeprefix("./") not in TOOLS]
        if inside != "." and not os.path.isdir(f"/{inside}"):
            found.append(inside + "/")
        for name in files:
            path = os.path.join(inside, name).removeprefix("./")
            is_same = os.path.isfile(f"/{path}") and filecmp.cmp(f"/{path}", f"{upper}/{path}", shallow=False)
            if path not in TOOLS and not is_same and not os.path.islink(f"{upper}/{path}"):
                found.append(path)
    return found


def installed(package, memory):
    """All that is done with the package, in the overlay."""
    upper, work, root = (memory / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
    run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    for place in ("proc", "sys", "dev"):
        run("mount", "--rbind", f"/{place}", root / place)
    run("mount", "-t", "tmpfs", "tmpfs", root / "run")
    shutil.copy(package, root / "run/beeline.deb")

    run("ip", "link", "set", "lo", "up")
    run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")

    def inside(*command, **how):
        return run("chroot", root, *command, **how)

    inside("dpkg", "-i", "/run/beeline.deb")
    assert "beeline:" in inside("getent", "passwd", "beeline")
    step("it installs, and makes the bridge's user")
    said = inside("beeline", "run", "--", "python3", "-c", TALK)
    assert "talked" in said and "python3" in said.split("talked")[1], said
    for page in ("beeline.1", "beelined-drain.1"):
        assert (root / f"usr/share/man/man1/{page}.gz").exists(), page
    for path in COMPLETIONS:
        assert (root / path).exists(), path
    inside("bash", "-c", f". /{COMPLETIONS[0]} && complete -p beeline")
    step("its command and library work; man pages and completions are where they are looked for")

    configuration = root / "etc/beeline/beelined.toml"
    configuration.write_text(configuration.read_text() + "\n[namespaces]\nall = true\n")
    agent = subprocess.Popen(["chroot", root, "beelined", "agent"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not (root / "run/beeline-agent/agent.sock").exists():
        assert time.monotonic() < deadline and agent.poll() is None, agent.stderr.read()
        time.sleep(0.05)
    agent.terminate()
    assert agent.wait(20) == 0
    inside("beelined", "keygen", "--name", "alpha", "--address", "192.0.2.1")
    shutil.copy(root / "etc/beeline/beelined.crt", root / "run/beelined.crt")
    inside("beelined", "keygen", "--name", "beta", "--address", "192.0.2.2", "--force")
    inside("beelined", "trust", "/run/beelined.crt")
    step("the agent runs with the configuration that came with it and a line more; keys are made and trusted")

    inside("dpkg", "-r", "beeline")
    assert configuration.exists() and not (root / "usr/bin/beeline").exists()
    inside("dpkg", "-i", "/run/beeline.deb")
    assert "all = true" in configuration.read_text(), "what the administrator wrote is kept"
    drop_in = root / "etc/systemd/system/beeline-test.service.d/beeline.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nExecStart=\nExecStart=/usr/bin/beeline run -- /bin/true\n")
    said = inside("dpkg", "-r", "beeline")
    assert "/etc/systemd/system/beeline-test.service.d/beeline.conf" in said, said
    shutil.rmtree(drop_in.parent)
    step("removed, it leaves the configuration, and finds it again; services that need it are named")
    inside("dpkg", "-P", "beeline")
    traces = left(upper)
    assert not traces, f"a purge leaves {traces}"
    step("purged, it leaves nothing")


def examples():
    """The examples in YAML: what is there can be understood, and says what it must."""
    try:
        import yaml
    except ImportError:
        print("skip  the examples: there is no python3-yaml")
        return
    folder = ROOT / "packaging/oci"
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        assert {"image"} <= set(service), name
        assert any("/run/beeline-agent" in volume for volume in service["volumes"]), name
        for other in service.get("depends_on", []):
            assert other in compose["services"], other
    kinds = {}
    for document in yaml.safe_load_all((folder / "kubernetes.yaml").read_text()):
        assert {"apiVersion", "kind", "metadata"} <= set(document), document
        kinds[document["kind"]] = document
    agent, pod = kinds["DaemonSet"]["spec"]["template"]["spec"], kinds["Pod"]["spec"]
    assert agent["hostNetwork"] and agent["hostPID"]
    for spec in (agent, pod):
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"] + spec.get("initContainers", []):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, container["name"]
    [program] = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in program["volumeMounts"]}
    for path in ("/run/beeline-agent", "/opt/beeline/beeline", "/opt/beeline/libbeeline.so"):
        assert mounts[path]["readOnly"], path
    assert program["command"][0] in mounts, "it is started by what is mounted"
    assert "add" not in program["securityContext"]["capabilities"], "programs need no capability"
    selector = kinds["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert selector == kinds["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    run("sh", "-n", folder / "podman.sh")
    step("the examples for Compose, Kubernetes and Podman are in order")


def main():
    if "--inside" in sys.argv:
        memory = pathlib.Path(sys.argv[3])
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "tmpfs", "tmpfs", memory)
        return installed(sys.argv[2], memory)
    packages = sys.argv[1:] or glob.glob(str(ROOT / "target/beeline_*.deb"))
    if len(packages) != 1:
        sys.exit("there is not one package: `make deb` makes it")
    if shutil.which("lintian"):
        run("lintian", "--fail-on", "error", "--allow-root", packages[0])
        step("lintian finds no error")
    else:
        print("skip  lintian: it is not installed")
    examples()
    if os.geteuid() != 0:
        print("skip  installing: it takes root")
        return 0
    with tempfile.TemporaryDirectory() as memory:
        return subprocess.call(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-B", __file__,
                                "--inside", packages[0], memory])


if __name__ == "__main__":
    sys.exit(main())
