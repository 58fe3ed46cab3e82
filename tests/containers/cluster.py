"""A Kubernetes of one node for a case: etcd, the control plane, kubelet, kube-proxy and a containerd of the case's own.

The programs are those that ci/kubernetes.sh builds. All of it runs in the namespaces of the case: interfaces, addresses and iptables'
rules are its network namespace's, mounts its mount namespace's, processes its pid namespace's, and end with them. What programs write
into directories whose names they do not let themselves be told, as /var/lib/kubelet and a pod's hostPath, lies over the host's in memory.
Only control groups are the host's own, so they have a name and are removed.
"""

import fcntl
import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile

from engine import needs, rootfs
from world import Skip, shell, until

HOME = pathlib.Path("/run/kubernetes-of-the-case")
GROUP = "beeline-test-kubernetes"
NODE, PODS, SERVICES = "10.250.0.1", "10.244.0.0/16", "10.96.0.0/16"
BUILT = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
         "cni/bridge", "cni/host-local", "cni/loopback")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# Of the whole host, and kubelet sets them where they are otherwise.
SETTINGS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
            "kernel/keys/root_maxkeys": 1_000_000, "kernel/keys/root_maxbytes": 25_000_000}

CONTAINERD = """
version = 2
root = "{home}/containerd/root"
state = "{home}/containerd/state"
[grpc]
address = "{home}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause"
stream_server_address = "127.0.0.1"
# A host where the tests run may forbid to protect a process from the OOM killer.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs}/cni"
conf_dir = "{home}/cni"
"""


def programs():
    """Where ci/kubernetes.sh has put them."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    directory = pathlib.Path(os.environ.get("BEELINE_KUBERNETES") or pathlib.Path(cache) / "beeline/kubernetes")
    missing = [name for name in BUILT if not os.access(directory / name, os.X_OK)]
    if missing:
        raise Skip(f"there is no Kubernetes in {directory} ({', '.join(missing)}); ci/kubernetes.sh builds it")
    return directory


def overlay(directory):
    """Lets the case write into a directory of the host, in memory."""
    name = HOME / "over" / directory.strip("/").replace("/", "-")
    for part in ("upper", "work"):
        (name / part).mkdir(parents=True)
    shell("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={directory},upperdir={name}/upper,workdir={name}/work", directory)


class Cluster:
    def __init__(self):
        self.programs = programs()
        needs("containerd", "ctr", "runc", "iptables", "openssl")
        # Its control groups have one name.
        self.lock = os.open(self.programs, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Skip("another run has its Kubernetes") from None
        self.running = {}
        HOME.mkdir()
        for directory in ("/etc", "/opt", "/var/lib", "/var/log"):
            overlay(directory)
        (HOME / "sys").mkdir()
        for name, value in SETTINGS.items():
            file = HOME / "sys" / name.replace("/", "-")
            file.write_text(f"{value}\n")
            shell("mount", "--bind", str(file), f"/proc/sys/{name}")
        shell("ip", "link", "set", "lo", "up")
        # The node's own network.
        shell("ip", "link", "add", "node", "type", "bridge")
        shell("ip", "addr", "add", f"{NODE}/24", "dev", "node")
        shell("ip", "link", "set", "node", "up")
        pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def __enter__(self):
        # The last one's, if it was killed.
        until(self.remove_groups, 15, "the end of another run's control groups")
        try:
            self.make_groups()
            self.start_runtime()
            self.start_control()
            self.start_node()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, failure, *_):
        # Not to who does not want to wait.
        if failure and issubclass(failure, Exception):
            self.tell()
        # Kubelet first, which would begin all anew.
        for name in ("kubelet", *self.running):
            if name in self.running:
                self.running[name].kill()
                self.running[name].wait()
        until(self.remove_groups, 15, "the end of its control groups")

    def tell(self):
        for name in self.running:
            print(f"-- {name}\n{(HOME / f'{name}.log').read_text(errors='replace')[-2000:]}")
        if "kube-apiserver" in self.running:
            for words in ("get nodes,pods -A -o wide", "get events -A", "logs -n beeline daemonset/beeline-agent"):
                asked = ["timeout", "5", *self.command(*words.split())]
                print(subprocess.run(asked, capture_output=True, text=True).stdout[-4000:])

    # ---- its control groups

    def hierarchies(self):
        """Where they are: one of the second kind, or many of the first."""
        top = pathlib.Path("/sys/fs/cgroup")
        places = [top, *(place for place in top.iterdir() if place.is_mount())]
        return [place for place in places if (place / "cgroup.procs").exists()]

    def make_groups(self):
        for place in self.hierarchies():
            (place / GROUP).mkdir()
            # These are empty in a new one of the first kind, and then nobody can be in it.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (place / name).exists() and (place / "cgroup.clone_children").exists():
                    (place / GROUP / name).write_text((place / name).read_text())

    def remove_groups(self):
        """Ends who is in them, if they are this case's, and says whether the groups are gone."""
        gone = True
        for group, _, _ in (found for place in self.hierarchies() for found in os.walk(place / GROUP, topdown=False)):
            try:
                for pid in map(int, pathlib.Path(group, "cgroup.procs").read_text().split()):
                    # Those of another pid namespace have the number 0, which kill(2) takes for the caller's own.
                    if pid > 0:
                        os.kill(pid, signal.SIGKILL)
                os.rmdir(group)
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone

    # ---- its processes

    def start(self, name, *words, program=None):
        log = open(HOME / f"{name}.log", "wb")
        # A session of its own: Ctrl-C is for the case, which ends it in order.
        self.running[name] = subprocess.Popen([str(word) for word in (program or self.programs / name, *words)],
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def ready(self, seconds, what, *question):
        """Waits until a command succeeds, while all that runs goes on."""
        def answers():
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} ended with {process.poll()}"
            return subprocess.run(list(map(str, question)), capture_output=True).returncode == 0
        until(answers, seconds, what)

    def start_runtime(self):
        (HOME / "cni").mkdir()
        # As flannel's and others' configurations are, less what tells nodes of each other.
        network = {"cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True,
                   "ipam": {"type": "host-local", "subnet": PODS, "dataDir": str(HOME / "addresses"), "routes": [{"dst": "0.0.0.0/0"}]}}
        (HOME / "cni/10-pods.conf").write_text(json.dumps(network))
        (HOME / "containerd.toml").write_text(CONTAINERD.format(home=HOME, programs=self.programs))
        self.start("containerd", "--config", HOME / "containerd.toml", program="containerd")
        self.ready(30, "containerd", *self.containerd("version"))
        self.image("localhost/pause:latest", "/usr/bin/sleep", entry=["/usr/bin/sleep", "infinity"])

    def start_control(self):
        shell("openssl", "genrsa", "-out", str(HOME / "accounts.key"), "2048")
        (HOME / "tokens.csv").write_text("case,case,case,system:masters\n")
        (HOME / "config").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "case", "users": [{"name": "case", "user": {"token": "case"}}],
            "clusters": [{"name": "case", "cluster": {"server": f"https://{NODE}:6443", "insecure-skip-tls-verify": True}}],
            "contexts": [{"name": "case", "context": {"cluster": "case", "user": "case"}}]}))
        (HOME / "config").chmod(0o600)
        self.start("etcd", "--data-dir", HOME / "etcd", "--unsafe-no-fsync")
        self.start("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--advertise-address={NODE}",
                   f"--cert-dir={HOME}/serving", f"--service-cluster-ip-range={SERVICES}",
                   "--service-account-issuer=https://kubernetes.default.svc",
                   f"--service-account-signing-key-file={HOME}/accounts.key", f"--service-account-key-file={HOME}/accounts.key",
                   f"--token-auth-file={HOME}/tokens.csv", "--authorization-mode=RBAC",
                   "--kubelet-preferred-address-types=InternalIP")
        self.ready(60, "the API", *self.command("get", "--raw", "/readyz"))
        self.start("kube-controller-manager", f"--kubeconfig={HOME}/config", "--leader-elect=false",
                   f"--service-account-private-key-file={HOME}/accounts.key", f"--root-ca-file={HOME}/serving/apiserver.crt",
                   f"--flex-volume-plugin-dir={HOME}/plugins")
        self.start("kube-scheduler", f"--kubeconfig={HOME}/config", "--leader-elect=false")

    def start_node(self):
        (HOME / "resolv.conf").write_text("")
        (HOME / "kubelet.json").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupRoot": f"/{GROUP}",
            "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False, "podLogsDir": str(HOME / "logs"),
            "containerRuntimeEndpoint": f"unix://{HOME}/containerd.sock", "volumePluginDir": str(HOME / "plugins"),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
            # A full disk of the host is not what is tested.
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100, "resolvConf": str(HOME / "resolv.conf")}))
        self.start("kubelet", f"--config={HOME}/kubelet.json", f"--kubeconfig={HOME}/config", f"--root-dir={HOME}/kubelet",
                   f"--cert-dir={HOME}/kubelet-serving", "--hostname-override=node", f"--node-ip={NODE}")
        # What it would set of connection tracking is of the whole host.
        self.start("kube-proxy", f"--kubeconfig={HOME}/config", "--proxy-mode=iptables", f"--cluster-cidr={PODS}",
                   "--hostname-override=node", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s",
                   "--conntrack-tcp-timeout-close-wait=0s")
        self.ready(60, "the node", *self.command("wait", "--for=condition=Ready", "node/node", "--timeout=5s"))
        self.ready(30, "the account of pods", *self.command("get", "serviceaccount", "default"))

    # ---- what is asked of it

    def containerd(self, *words):
        return ["ctr", "--address", f"{HOME}/containerd.sock", "--namespace", "k8s.io", *map(str, words)]

    def command(self, *words):
        if words[0] == "exec":
            words = ["exec", words[1], "--", *words[2:]]
        return [str(self.programs / "kubectl"), f"--kubeconfig={HOME}/config", f"--cache-dir={HOME}/cache", *map(str, words)]

    def __call__(self, *words):
        return shell(*self.command(*words))

    def told(self, *words):
        return json.loads(self("get", "-o", "json", *words))

    def version(self):
        about = self.told("node", "node")["status"]["nodeInfo"]
        return f"Kubernetes {about['kubeletVersion']} with {about['containerRuntimeVersion']}"

    def image(self, name, *contents, trees=(), files=(), entry=None):
        """Makes an image and puts it onto the node, by this name."""
        root = rootfs(HOME / "rootfs", *contents, trees=trees, files=files)
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(root, arcname=".")
        shutil.rmtree(root)
        layer = layer.getvalue()
        machine = os.uname().machine
        config = json.dumps({"architecture": MACHINES.get(machine, machine), "os": "linux", "config": {"Entrypoint": entry},
                             "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}})
        manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}])
        archive = HOME / "image.tar"
        with tarfile.open(archive, "w") as tar:
            for path, data in (("layer.tar", layer), ("config.json", config.encode()), ("manifest.json", manifest.encode())):
                member = tarfile.TarInfo(path)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        shell(*self.containerd("images", "import", archive))
        archive.unlink()
