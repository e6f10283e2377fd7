"""Reads the API server's address and our credentials from a kubeconfig or the pod's service account.

lightkube reads the files (contexts, tokens, exec plugins, client certificates); this module adds one
sentence for each way in which they can be wrong.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue, User
from lightkube.core.exceptions import ConfigError

from gpuslice.errors import InputError
from gpuslice.kube.http import SERVICE_ACCOUNT


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one API server."""

    server: httpx2.URL
    tls: ssl.SSLContext
    auth: httpx2.Auth | None


def read_access(kubeconfig: Path | None) -> Access:
    """Read the current context. Raises InputError, naming the file."""
    path = (kubeconfig or _default_path()).expanduser()
    try:
        config = _current_context(path)
        user = _modern_exec(config.user or User())
        _check_files(config, user)
        tls = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
        # Python 3.13 refuses certificate authorities that Go accepts (no key identifier): follow kubectl.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return Access(httpx2.URL(config.cluster.server), tls, user_auth(user))
    except FileNotFoundError as error:
        raise InputError(f"kubeconfig {path} does not exist; name one with --kubeconfig") from error
    except KeyError as error:
        raise InputError(f"kubeconfig {path} is incomplete: there is no {error}") from error
    except (OSError, TypeError, ValueError, yaml.YAMLError, httpx2.InvalidURL, ConfigError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"kubeconfig {path} cannot be used: {why}") from error


def _default_path() -> Path:
    if "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists():
        return SERVICE_ACCOUNT
    named = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if os.pathsep in named:
        raise InputError("KUBECONFIG names several files; give one of them with --kubeconfig")
    return Path(named)


def _current_context(path: Path) -> SingleConfig:
    if path == SERVICE_ACCOUNT:
        whole = KubeConfig.from_service_account(path)
    else:
        document = yaml.safe_load(path.read_text())
        if not isinstance(document, dict):
            raise ConfigError("it holds no YAML mapping")
        whole = KubeConfig.from_dict(document, fname=path.absolute())
    config = whole.get()
    assert config is not None  # only if we gave a default
    return config


def _check_files(config: SingleConfig, user: User) -> None:
    """OpenSSL does not say which file it misses."""
    for file in (config.cluster.certificate_auth, user.client_cert, user.client_key):
        if file and not Path(config.abs_file(file)).is_file():
            raise ConfigError(f"{config.abs_file(file)} does not exist")


def _modern_exec(user: User) -> User:
    """Let exec plugins of client.authentication.k8s.io/v1 through.

    lightkube knows the betas only; what is asked of the plugin and its answer are the same. The plugin
    learns the version from KUBERNETES_EXEC_INFO, as from kubectl.
    """
    plugin = user.exec
    if plugin is None:
        return user
    info = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = [*(plugin.env or ()), NameValue("KUBERNETES_EXEC_INFO", msgspec.json.encode(info).decode())]
    version = plugin.apiVersion
    if version == "client.authentication.k8s.io/v1":
        version = "client.authentication.k8s.io/v1beta1"
    return msgspec.structs.replace(user, exec=msgspec.structs.replace(plugin, apiVersion=version, env=env))
