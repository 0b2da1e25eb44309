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

{{- /* The name of the ValidatingWebhookConfiguration, unique for each release in a cluster. */}}
{{- define "tinkedge.webhookConfiguration" -}}
{{ printf "%s-webhooks.%s" (include "tinkedge.fullname" .) .Release.Namespace }}
{{- end }}

{{- /* Not empty if the controller serves webhooks. */}}
{{- define "tinkedge.servesWebhooks" -}}
{{- if and .Values.controller.enabled (or .Values.controller.webhooks.enabled .Values.v1alpha1.enabled) }}true{{ end }}
{{- end }}

{{- define "tinkedge.webhookService" -}}
{{ include "tinkedge.fullname" . }}-webhooks
{{- end }}

{{- /*
The Secret in which the replicas behind a Service share the authority of their certificates: (list $ ROLE SERVICE). It is
empty: the first replica fills it, and an upgrade leaves alone what is in it.
*/}}
{{- define "tinkedge.authoritySecret" -}}
{{- $top := index . 0 -}}
apiVersion: v1
kind: Secret
type: Opaque
metadata:
  name: {{ index . 2 }}-ca
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "tinkedge.labels" $top | nindent 4 }}
    app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /*
What an account may not do with a right that RBAC gives as a whole only (kubernetes.io, "Validating Admission Policy"):
(dict "top" $ "name" "webhooks" "account" "controller" "rule" RULE "validations" TEXT "variables" TEXT).
*/}}
{{- define "tinkedge.policy" -}}
{{- $name := printf "%s-%s.%s" (include "tinkedge.fullname" .top) .name .top.Release.Namespace -}}
{{- $account := printf "system:serviceaccount:%s:%s" .top.Release.Namespace (include "tinkedge.serviceAccount" (list .top .account)) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "tinkedge.labels" .top | nindent 4 }}
    app.kubernetes.io/component: {{ .account }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {{ .rule | trim | nindent 8 | trim }}
  matchConditions:
    - name: account
      expression: request.userInfo.username == "{{ $account }}"
  {{- with .variables }}
  variables:
    {{- . | trim | nindent 4 }}
  {{- end }}
  validations:
    {{- .validations | trim | nindent 4 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "tinkedge.labels" .top | nindent 4 }}
    app.kubernetes.io/component: {{ .account }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}

{{- /* Validations that allow no change of metadata but `annotations`. */}}
{{- define "tinkedge.policy.metadata" -}}
- expression: >-
    object.metadata.?labels == oldObject.metadata.?labels
    && object.metadata.?finalizers == oldObject.metadata.?finalizers
    && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences
  message: this account changes no labels, finalizers and ownerReferences of the object
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
# To check that an object that a Workflow names really does not exist.
- apiGroups: [tinkerbell.org]
  resources: [hardware, templates]
  verbs: [get]
{{- end }}

{{- define "tinkedge.rules.webhook-registration" -}}
# Its caBundle; a ValidatingAdmissionPolicy rejects any other change.
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [{{ include "tinkedge.webhookConfiguration" . }}]
  verbs: [get, patch]
{{- end }}

{{- define "tinkedge.policy.webhook-registration" -}}
- expression: >-
    size(object.webhooks) == size(oldObject.webhooks)
    && object.webhooks.all(new, oldObject.webhooks.exists(old,
    new.name == old.name
    && new.rules == old.rules
    && new.clientConfig.?service == old.clientConfig.?service
    && new.clientConfig.?url == old.clientConfig.?url
    && new.?failurePolicy == old.?failurePolicy
    && new.?matchPolicy == old.?matchPolicy
    && new.?matchConditions == old.?matchConditions
    && new.?namespaceSelector == old.?namespaceSelector
    && new.?objectSelector == old.?objectSelector
    && new.?timeoutSeconds == old.?timeoutSeconds
    && new.sideEffects == old.sideEffects
    && new.admissionReviewVersions == old.admissionReviewVersions))
  message: the controller writes nothing but webhooks[].clientConfig.caBundle
{{ include "tinkedge.policy.metadata" . }}
- expression: object.metadata.?annotations == oldObject.metadata.?annotations
  message: the controller changes no annotations of the webhook configuration
{{- end }}

{{- /* The validations of `spec.conversion`: (list $ SERVICE). */}}
{{- define "tinkedge.policy.conversion" -}}
{{- $top := index . 0 -}}
- expression: >-
    object.spec.group == oldObject.spec.group
    && object.spec.names == oldObject.spec.names
    && object.spec.scope == oldObject.spec.scope
    && object.spec.versions == oldObject.spec.versions
    && object.spec.?preserveUnknownFields == oldObject.spec.?preserveUnknownFields
  message: the webhook writes nothing but spec.conversion
- expression: >-
    object.spec.conversion.strategy == "Webhook"
    && object.spec.conversion.webhook.clientConfig.?service.?namespace.orValue("") == "{{ $top.Release.Namespace }}"
    && object.spec.conversion.webhook.clientConfig.?service.?name.orValue("") == "{{ index . 1 }}"
  message: objects are converted by the webhook's own Service
{{ include "tinkedge.policy.metadata" . }}
- expression: object.metadata.?annotations == oldObject.metadata.?annotations
  message: the webhook changes no annotations of the definition
{{- end }}

{{- /* A Lease, by the name that the program uses. */}}
{{- define "tinkedge.rules.lease" -}}
# A rule for create can't name an object.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ . }}]
  verbs: [get, watch, patch]
{{- end }}

{{- /* The Secret of `tinkedge.authoritySecret`, by the name of its Service. */}}
{{- define "tinkedge.rules.authority" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ . }}-ca]
  verbs: [get, patch, watch]  # without "watch", a replacement is noticed within a minute
{{- end }}

{{- define "tinkedge.rules.server" -}}
- apiGroups: [tinkerbell.org]
  resources: [hardware, workflows]
  verbs: [list, watch]
# Read it again if another replica was faster.
- apiGroups: [tinkerbell.org]
  resources: [workflows]
  verbs: [get]
- apiGroups: [tinkerbell.org]
  resources: [workflows/status]
  verbs: [patch]
# The inventory that the machine's agent reports; a ValidatingAdmissionPolicy rejects any other change.
- apiGroups: [tinkerbell.org]
  resources: [hardware/status]
  verbs: [patch]
# For `kubectl events --for hardware/NAME`: what has changed in a machine.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "tinkedge.policy.server-inventory" -}}
- expression: >-
    object.?status.?state == oldObject.?status.?state
    && object.?status.?stateSince == oldObject.?status.?stateSince
    && object.?status.?mac == oldObject.?status.?mac
    && object.?status.?ip == oldObject.?status.?ip
    && object.?status.?bootProblem == oldObject.?status.?bootProblem
    && object.?status.?power == oldObject.?status.?power
    && object.?status.?lastBoot == oldObject.?status.?lastBoot
    && object.?status.?conditions == oldObject.?status.?conditions
    && object.?status.?inventory.?outOfBand == oldObject.?status.?inventory.?outOfBand
  message: the server writes nothing of a Hardware's status but inventory.inBand
{{- end }}

{{- define "tinkedge.rules.server-attributes" -}}
# The annotation tinkerbell.org/agent-attributes; a ValidatingAdmissionPolicy rejects any other change.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [patch]
{{- end }}

{{- define "tinkedge.policy.server-attributes" -}}
- expression: object.spec == oldObject.spec
  message: the server changes no spec of a Hardware
{{ include "tinkedge.policy.metadata" . }}
- expression: >-
    variables.new.all(key, key == "tinkerbell.org/agent-attributes"
    || (key in variables.old && variables.old[key] == variables.new[key]))
    && variables.old.all(key, key in variables.new)
  message: the server writes no annotation of a Hardware but tinkerbell.org/agent-attributes
{{- end }}

{{- define "tinkedge.rules.edge" -}}
- apiGroups: [tinkerbell.org]
  resources: [hardware, osies, workflows]
  verbs: [list, watch]
# The conditions AddressConflict, Misconfigured and BootProblem, the state of the machine, its address and MAC.
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

{{- define "tinkedge.rules.edge-discovery" -}}
# ValidatingAdmissionPolicies reject every Hardware but that of a discovered machine, and every deletion but that of one
# whose machine has not introduced itself.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [create, delete]
{{- $rules := join " " .Values.discovery.rules | nospace }}
{{- if or (contains "only=listed" $rules) (contains "lists=" $rules) }}
# The lists of expected machines, with only=listed or lists=.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{- define "tinkedge.policy.edge-discovery" -}}
- expression: >-
    object.metadata.?labels.orValue({}) == {"tinkerbell.org/auto-discovered": "true"}
    && object.metadata.?finalizers.orValue([]) == ["tinkerbell.org/discovery"]
    && size(object.metadata.?ownerReferences.orValue([])) == 0
    && object.metadata.?annotations.orValue({}).all(key, key == "tinkerbell.org/discovery-rule")
  message: the edge creates no Hardware but that of a discovered machine
- expression: >-
    object.spec.all(key, key in ["networkInterfaces", "osie"]) && size(object.spec.networkInterfaces) == 1
    && object.spec.networkInterfaces.all(mac, object.metadata.name == "discovery-" + mac.replace(":", "-"))
  message: the Hardware of a discovered machine has one interface, after which it is named, and an OSIE
{{- end }}

{{- define "tinkedge.policy.edge-discovery-delete" -}}
- expression: >-
    oldObject.metadata.?labels.orValue({}) == {"tinkerbell.org/auto-discovered": "true"}
    && oldObject.metadata.?annotations.orValue({}).all(key, key == "tinkerbell.org/discovery-rule")
    && oldObject.metadata.name.startsWith("discovery-") && !oldObject.?status.?inventory.hasValue()
  message: the edge deletes only discovered Hardware that has no inventory and that no operator has labelled or annotated
{{- end }}

{{- define "tinkedge.rules.edge-peers" -}}
# Each edge writes one with the name of its pod, and reads those of the others. Kubernetes deletes it with the pod. A rule
# for create can't name an object, so a ValidatingAdmissionPolicy rejects writes of other Leases.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list, create, patch]
{{- end }}

{{- define "tinkedge.policy.edge-peers" -}}
- expression: >-
    object.metadata.name
    == request.userInfo.?extra[?"authentication.kubernetes.io/pod-name"][?0].orValue("")
  message: an edge writes no Lease but that with the name of its own pod
{{- end }}

{{- define "tinkedge.rules.server-peers" -}}
# The addresses of the edges, to which the server sends events of agents.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list]
{{- end }}

{{- define "tinkedge.rules.edge-secrets" -}}
- apiGroups: [""]
  resources: [secrets]
  # resourceNames: [m1-userdata]
  verbs: [get]
{{- end }}

{{- define "tinkedge.rules.bmc" -}}
# `patch`: to remove the annotation that asks for an inventory.
- apiGroups: [bmc.tinkerbell.org]
  resources: [machines]
  verbs: [get, list, watch, patch]
# `delete`: Jobs that have an annotation with the time after which they are deleted.
- apiGroups: [bmc.tinkerbell.org]
  resources: [jobs]
  verbs: [list, watch, delete]
- apiGroups: [bmc.tinkerbell.org]
  resources: [tasks]
  verbs: [get, list, watch, create]
- apiGroups: [bmc.tinkerbell.org]
  resources: [machines/status, jobs/status, tasks/status]
  verbs: [patch]
# The inventory and the power state that a BMC reports.
- apiGroups: [tinkerbell.org]
  resources: [hardware/status]
  verbs: [patch]
# toggleAllowNetboot of a Workflow: disableNetboot of interfaces. A ValidatingAdmissionPolicy rejects any other change.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [patch]
# The boot before a Workflow: its finalizer, its status. The controller already has all of these rights except `get`.
- apiGroups: [tinkerbell.org]
  resources: [workflows]
  verbs: [get, list, watch, patch]
- apiGroups: [tinkerbell.org]
  resources: [workflows/status]
  verbs: [patch]
# The Lease of a Rufio: while one runs, the controller leaves BMCs alone.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "tinkedge.rufioLease" . }}, e74dec1a.tinkerbell.org]
  verbs: [list]
{{- end }}

{{- define "tinkedge.rules.discovery" -}}
# The lists of expected machines. RBAC can't select by a label.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch]
# An approved machine gets a Hardware of another name in place of the discovered one. ValidatingAdmissionPolicies reject
# deletions and changes of Hardware that was not discovered.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [get, create, patch, delete]
# The condition AsExpected, and the inventory of an approved machine.
- apiGroups: [tinkerbell.org]
  resources: [hardware/status]
  verbs: [patch]
# The BMC of an approved machine, if a list has its Secret. The controller never reads the Secret for this.
- apiGroups: [bmc.tinkerbell.org]
  resources: [machines]
  verbs: [create]
{{- end }}

{{- define "tinkedge.policy.discovery-delete" -}}
- expression: oldObject.metadata.?labels[?"tinkerbell.org/auto-discovered"].orValue("") == "true"
  message: the controller may delete only discovered Hardware
{{- end }}

{{- /* The variables of tinkedge.policy.bmc-netboot. */}}
{{- define "tinkedge.policy.hardware-variables" -}}
- {name: old, expression: 'oldObject.spec.?networkInterfaces.orValue({})'}
- {name: new, expression: 'object.spec.?networkInterfaces.orValue({})'}
- name: discovered
  expression: >-
    oldObject.metadata.?labels[?"tinkerbell.org/auto-discovered"].orValue("") == "true"
    || oldObject.metadata.?annotations[?"tinkerbell.org/discovered-as"].orValue("") != ""
    || "tinkerbell.org/discovery" in oldObject.metadata.?finalizers.orValue([])
{{- end }}

{{- /* The interfaces of a Hardware, without the field that the controller may change, are equal before and after. */}}
{{- define "tinkedge.policy.bmc-netboot" -}}
- expression: >-
    object.spec.all(key, key == "networkInterfaces"
    || (key in oldObject.spec && oldObject.spec[key] == object.spec[key]))
    && oldObject.spec.all(key, key in object.spec)
  message: the controller may change only disableNetboot of the interfaces in a Hardware's spec
- expression: >-
    variables.new.all(mac, mac in variables.old
    && variables.new[mac].all(key, key == "disableNetboot"
    || (key in variables.old[mac] && variables.old[mac][key] == variables.new[mac][key]))
    && variables.old[mac].all(key, key == "disableNetboot" || key in variables.new[mac]))
    && variables.old.all(mac, mac in variables.new)
  message: the controller may change only disableNetboot of an interface of a Hardware
- expression: >-
    variables.discovered
    || (object.metadata.?labels == oldObject.metadata.?labels
    && object.metadata.?finalizers == oldObject.metadata.?finalizers
    && object.metadata.?annotations == oldObject.metadata.?annotations)
  message: the controller may change labels, finalizers and annotations of discovered Hardware alone
- expression: object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences
  message: the controller may not change the ownerReferences of a Hardware
{{- end }}

{{- /* Rufio's name for the Lease of its leader election. */}}
{{- define "tinkedge.rufioLease" -}}
e74dec1a.bmc.tinkerbell.org
{{- end }}

{{- define "tinkedge.rules.bmc-secrets" -}}
# User, password and certificate authority of BMCs.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}

{{- define "tinkedge.rules.metal3" -}}
# `get`: to check that a host is really deleted or free.
- apiGroups: [metal3.io]
  resources: [baremetalhosts]
  verbs: [get, list, watch]
- apiGroups: [metal3.io]
  resources: [hardwaredata]
  verbs: [list, watch]
# Applying an object that does not exist needs `create`, too.
- apiGroups: [tinkerbell.org]
  resources: [hardware]
  verbs: [get, list, watch, create, patch, delete]
# To check if one runs on a Hardware whose host is deleted.
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

{{- define "tinkedge.rules.v1alpha1" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [hardware.tinkerbell.org, templates.tinkerbell.org, workflows.tinkerbell.org]
  verbs: [get, watch, patch]
# A Tinkerbell on this API is reported: definitions that it replaces (those of BMCs with bmc.enabled), and its controller.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [machines.bmc.tinkerbell.org, jobs.bmc.tinkerbell.org, tasks.bmc.tinkerbell.org]
  verbs: [get, watch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [tink-controller.tinkerbell.org, tink.tinkerbell.org]
  verbs: [list]
{{- end }}

{{- define "tinkedge.rules.metal3-webhook" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [baremetalhosts.metal3.io]
  verbs: [get, patch]
{{- end }}
