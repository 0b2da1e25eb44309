{{- /*
A role and who has it: (dict "top" $ "name" "controller" "account" "controller" "rules" TEXT "scope" "cluster" or a NAMESPACE).
*/}}
{{- define "tinkedge.grant" -}}
{{- $cluster := eq .scope "cluster" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "ClusterRole" "Role" $cluster }}
metadata:
  {{- include "tinkedge.grantMetadata" . | nindent 2 }}
rules:
  {{- .rules | trim | nindent 2 }}
---
{{ include "tinkedge.binding" . }}
{{- end }}

{{- /*
The same, without "scope": in all namespaces, or by a Role in each of `scope.namespaces`. That has another name than what the
same account may do in the release's own namespace.
*/}}
{{- define "tinkedge.scopedGrant" -}}
{{- $what := . -}}
{{- range $index, $namespace := .top.Values.scope.namespaces -}}
{{- if $index }}
---
{{ end }}
{{- include "tinkedge.grant" (merge (dict "scope" $namespace "name" (printf "%s-objects" $what.name)) $what) }}
{{- else -}}
{{ include "tinkedge.grant" (merge (dict "scope" "cluster") $what) }}
{{- end }}
{{- end }}

{{- /* The name of the ValidatingWebhookConfiguration: several releases in a cluster don't take each other's. */}}
{{- define "tinkedge.webhookConfiguration" -}}
{{- if .Values.scope.namespaces -}}
{{ printf "%s.%s" (include "tinkedge.fullname" .) .Release.Namespace }}
{{- else -}}
tinkedge
{{- end -}}
{{- end }}

{{- define "tinkedge.binding" -}}
{{- $cluster := eq .scope "cluster" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "ClusterRoleBinding" "RoleBinding" $cluster }}
metadata:
  {{- include "tinkedge.grantMetadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ default (ternary "ClusterRole" "Role" $cluster) .roleKind }}
  name: {{ include "tinkedge.fullname" .top }}-{{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "tinkedge.serviceAccount" (list .top .account) }}
    namespace: {{ .top.Release.Namespace }}
{{- end }}

{{- define "tinkedge.grantMetadata" -}}
name: {{ include "tinkedge.fullname" .top }}-{{ .name }}
{{- if ne .scope "cluster" }}
namespace: {{ .scope }}
{{- end }}
labels:
  {{- include "tinkedge.labels" .top | nindent 2 }}
  app.kubernetes.io/component: {{ .account }}
{{- end }}

{{- define "tinkedge.rules.controller" -}}
- apiGroups: [tinkerbell.org]
  resources: [hardware, osies, templates, workflows]
  verbs: [list, watch]
# Its finalizer.
- apiGroups: [tinkerbell.org]
  resources: [workflows]
  verbs: [patch]
# With spec.ttlSecondsAfterFinished, or the option workflow-history-limit.
- apiGroups: [tinkerbell.org]
  resources: [workflows]
  verbs: [delete]
- apiGroups: [tinkerbell.org]
  resources: [workflows/status]
  verbs: [patch]
# For `kubectl describe workflow`.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "tinkedge.rules.webhooks" -}}
# Whether what a Workflow names is really not there.
- apiGroups: [tinkerbell.org]
  resources: [hardware, templates]
  verbs: [get]
{{- end }}

{{- define "tinkedge.rules.webhook-registration" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  verbs: [create]
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [{{ include "tinkedge.webhookConfiguration" . }}]
  verbs: [get, patch]
{{- end }}

{{- /* A Lease by its name, which is that of the program's. */}}
{{- define "tinkedge.rules.lease" -}}
# A rule can't name what does not exist yet.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ . }}]
  verbs: [get, patch]
{{- end }}

{{- define "tinkedge.rules.authority" -}}
# A rule can't name what does not exist yet.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [tinkedge-webhook-ca]
  verbs: [get, patch, watch]  # without "watch", one that somebody replaces is noticed within a minute
{{- end }}

{{- define "tinkedge.rules.server" -}}
- apiGroups: [tinkerbell.org]
  resources: [hardware, workflows]
  verbs: [list, watch]
# As it is now, when somebody else was faster.
- apiGroups: [tinkerbell.org]
  resources: [workflows]
  verbs: [get]
- apiGroups: [tinkerbell.org]
  resources: [workflows/status]
  verbs: [patch]
# The annotation tinkerbell.org/agent-attributes: what tink-agent says of its machine. Without it, that is in the log only.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [patch]
{{- end }}

{{- define "tinkedge.rules.edge" -}}
- apiGroups: [tinkerbell.org]
  resources: [hardware, osies, workflows]
  verbs: [list, watch]
# The conditions AddressConflict, Misconfigured and BootProblem.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [get]
- apiGroups: [tinkerbell.org]
  resources: [hardware/status]
  verbs: [patch]
# For `kubectl describe hardware`: why a machine does not boot.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "tinkedge.rules.edge-peers" -}}
# Each edge keeps one of its own, by its address, reads the others', and removes what has been abandoned.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, create, patch, delete]
{{- end }}

{{- define "tinkedge.rules.edge-secrets" -}}
- apiGroups: [""]
  resources: [secrets]
  # resourceNames: [m1-userdata]
  verbs: [get]
{{- end }}

{{- define "tinkedge.rules.metal3" -}}
# `get`: whether a host is really gone, or really free.
- apiGroups: [metal3.io]
  resources: [baremetalhosts]
  verbs: [get, list, watch]
- apiGroups: [metal3.io]
  resources: [hardwaredata]
  verbs: [list, watch]
# To apply what is not there takes `create`, too.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [get, list, watch, create, patch, delete]
# Whether one runs on a Hardware whose host is gone.
- apiGroups: [tinkerbell.org]
  resources: [workflows]
  verbs: [list, watch]
# For `kubectl describe baremetalhost`.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "tinkedge.rules.metal3-secrets" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}

{{- define "tinkedge.rules.metal3-bmc" -}}
- apiGroups: [bmc.tinkerbell.org]
  resources: [machines]
  verbs: [get, create, patch]
{{- end }}

{{- define "tinkedge.rules.metal3-webhook" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [baremetalhosts.metal3.io]
  verbs: [get, patch]
{{- end }}
