#!/usr/bin/env bash
# A post-renderer of Helm: reads the chart's manifests, writes them with Penstock in the pods of the engines.
# Needs kubectl. PENSTOCK_COMPONENT: the component's directory, if this script lies elsewhere.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
component=${PENSTOCK_COMPONENT:-$here/../../component}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/chart" "$work/engines"
cp -R "$component" "$work/component"
cat >"$work/chart/all.yaml"
# The chart gives the label `model` to the Deployments of engines, and to no other.
cat >"$work/chart/kustomization.yaml" <<'YAML'
resources: [all.yaml]
patches:
  - target: {kind: Deployment, labelSelector: "!model"}
    patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: any, labels: {penstock.dev/sidecar: disabled}}
YAML
cat >"$work/engines/kustomization.yaml" <<'YAML'
resources: [../chart]
components: [../component]
YAML
kubectl kustomize "$work/engines"
