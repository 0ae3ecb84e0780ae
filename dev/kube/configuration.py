"""The node's configuration files.

Owns: their content and names. May import: addresses, paths. Invariants: the text depends on the
cache directory alone; a file is written only when its content changes, because kube-proxy ends
itself when its file is touched.
"""

from __future__ import annotations

import json
from pathlib import Path

from dev.kube import addresses as net
from dev.kube.paths import Paths

PAUSE_IMAGE = "localhost/magnetar-pause:1"
PLUGIN_DIRECTORY = "/usr/lib/cni"
IDENTITIES = ("controller-manager", "scheduler", "kubelet", "proxy", "coredns", "admin")
EVICTION = {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"}


def client_configuration(paths: Paths, identity: str) -> Path:
    """The kubeconfig of one identity; the administrator's is the one users get."""
    return (
        paths.kubeconfig if identity == "admin" else paths.configuration / f"{identity}.kubeconfig"
    )


def kubeconfig_text(paths: Paths, identity: str) -> str:
    """JSON, which is YAML too."""
    pki = paths.certificates
    user = {
        "client-certificate": str(pki / f"{identity}.crt"),
        "client-key": str(pki / f"{identity}.key"),
    }
    cluster = {"server": net.API_URL, "certificate-authority": str(pki / "ca.crt")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "magnetar-local", "cluster": cluster}],
        "users": [{"name": identity, "user": user}],
        "contexts": [
            {"name": "magnetar-local", "context": {"cluster": "magnetar-local", "user": identity}}
        ],
        "current-context": "magnetar-local",
    }
    return json.dumps(content, indent=2) + "\n"


def containerd_text(paths: Paths) -> str:
    """Own root, state and socket; network namespaces below the state directory, where `down`
    finds them."""
    return f"""version = 2
root = {json.dumps(str(paths.containerd_root))}
state = {json.dumps(str(paths.containerd_state))}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = {json.dumps(str(paths.containerd_socket))}

[plugins."io.containerd.internal.v1.opt"]
path = {json.dumps(str(paths.cluster / "opt"))}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
# Without CAP_SYS_RESOURCE (containers, some virtual machines) a negative oom_score_adj makes runc fail.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "{net.LOOPBACK}"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGIN_DIRECTORY}"
conf_dir = {json.dumps(str(paths.configuration / "cni"))}

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def network_plugin_text(paths: Paths) -> str:
    ranges = [[{"subnet": net.POD_RANGE, "gateway": net.BRIDGE_IP}]]
    addressing = {
        "type": "host-local",
        "dataDir": str(paths.network_plugin_state),
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": net.BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addressing,
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    content = {"cniVersion": "0.4.0", "name": net.NETWORK_NAME, "plugins": [bridge, portmap]}
    return json.dumps(content, indent=2)


def kubelet_text(paths: Paths) -> str:
    pki = paths.certificates
    content = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": net.BRIDGE_IP,
        "healthzBindAddress": net.LOOPBACK,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
        "clusterDNS": [net.BRIDGE_IP],
        "clusterDomain": net.CLUSTER_DOMAIN,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,
        "podLogsDir": str(paths.logs / "pods"),
        "volumePluginDir": str(paths.kubelet / "plugins-exec"),
        "evictionHard": EVICTION,
        # without a registry a collected image cannot be fetched again
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "registerNode": True,
        "nodeStatusUpdateFrequency": "5s",
        # how soon pods see changed secrets and ConfigMaps, which are a minute late by default
        "syncFrequency": "5s",
        "shutdownGracePeriod": "0s",
    }
    return json.dumps(content, indent=2)


def proxy_text(paths: Paths) -> str:
    content = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(client_configuration(paths, "proxy"))},
        "hostnameOverride": net.NODE_NAME,
        "clusterCIDR": net.POD_RANGE,
        "nodePortAddresses": ["127.0.0.0/8"],
        "healthzBindAddress": f"{net.LOOPBACK}:10256",
        "metricsBindAddress": f"{net.LOOPBACK}:10249",
        "oomScoreAdj": 0,
        # The host's connection tracking limits belong to the user.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    return json.dumps(content, indent=2)


def dns_text(paths: Paths) -> str:
    return f""".:53 {{
    bind {net.BRIDGE_IP}
    errors
    ready {net.LOOPBACK}:18181
    kubernetes {net.CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {client_configuration(paths, "coredns")}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 2
    }}
    forward . /etc/resolv.conf
    # Only foreign names: a cached "no such pod" would outlive the pod's start.
    cache 30 {{
        disable success {net.CLUSTER_DOMAIN}
        disable denial {net.CLUSTER_DOMAIN}
    }}
}}
"""


def write(paths: Paths) -> None:
    """Write every configuration file; equal content gives equal files."""
    texts = {
        paths.configuration / "containerd.toml": containerd_text(paths),
        paths.configuration / "cni" / "10-magnetar.conflist": network_plugin_text(paths),
        paths.configuration / "kubelet.json": kubelet_text(paths),
        paths.configuration / "kube-proxy.json": proxy_text(paths),
        paths.configuration / "Corefile": dns_text(paths),
    }
    for identity in IDENTITIES:
        texts[client_configuration(paths, identity)] = kubeconfig_text(paths, identity)
    for path, text in texts.items():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # kube-proxy watches its file and ends itself when it is written, even with the same
        # content.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o600)
