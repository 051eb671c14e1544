"""The options of a program that speaks to a Kubernetes API server from outside its pods."""

from __future__ import annotations

from penstock.agent.parsing.options import Option, parse_optional_path

KUBE_OPTIONS = (
    Option("kube-api", "", str, "Outside a pod: address of the Kubernetes API server, https://HOST:PORT."),
    Option("kube-token-file", "", parse_optional_path, "With --kube-api: file of the bearer token."),
    Option("kube-ca", "", parse_optional_path, "With --kube-api: CA bundle of the API server."),
)
