{{- /*
Settings of each role: what the chart knows, what the user says of all roles, and what he says of this one; the last is
the strongest. Options that a role does not have are left alone by it.
*/}}
{{- define "tinkedge.settings" -}}
{{- $top := index . 0 -}}
{{- $role := index . 1 -}}
{{- $made := include (printf "tinkedge.settings.%s" $role) $top | fromYaml -}}
{{- $own := (get $top.Values (include "tinkedge.valuesKey" $role)).settings -}}
{{- toYaml (mergeOverwrite (dict) $made $top.Values.settings $own) -}}
{{- end }}

{{- define "tinkedge.settings.scope" -}}
{{- with .Values.scope.namespaces }}
namespaces: {{ join "," . | quote }}
{{- end }}
{{- end }}

{{- define "tinkedge.settings.machines" -}}
{{- include "tinkedge.settings.scope" . }}
{{- with .Values.scope.hardwareSelector }}
hardware-selector: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "tinkedge.settings.edge" -}}
{{- include "tinkedge.settings.machines" . }}
data-dir: /var/lib/tinkedge/edge
interface: {{ toJson .Values.edge.interfaces }}
grpc-port: {{ .Values.server.port }}
{{- with include "tinkedge.authority" . }}
grpc-authority: {{ . | quote }}
{{- end }}
{{- with .Values.edge.disable }}
disable: {{ toJson . }}
{{- end }}
{{- with .Values.discovery.rules }}
discover: {{ toJson . }}
{{- end }}
{{- if .Values.edge.peers }}
peer-group: {{ include "tinkedge.fullname" . }}
lease-namespace: {{ .Release.Namespace }}
reports-key: /run/secrets/tinkedge/keys/reports.key
{{- end }}
{{- if include "tinkedge.caSecret" . }}
grpc-tls-ca: /run/secrets/tinkedge/ca/ca.crt
{{- end }}
{{- if include "tinkedge.needsKeys" . }}
agent-token-key: /run/secrets/tinkedge/keys/agent-token.key
metadata-token-key: /run/secrets/tinkedge/keys/metadata-token.key
admin-token-file: /run/secrets/tinkedge/keys/admin-token
{{- end }}
{{- end }}

{{- define "tinkedge.settings.server" -}}
{{- include "tinkedge.settings.machines" . }}
grpc-port: {{ .Values.server.port }}
{{- if eq .Values.server.mode "edges" }}
interface: {{ toJson .Values.edge.interfaces }}
{{- end }}
{{- if include "tinkedge.tlsSecret" . }}
grpc-tls-cert: /run/secrets/tinkedge/tls/tls.crt
grpc-tls-key: /run/secrets/tinkedge/tls/tls.key
grpc-tls-ca: /run/secrets/tinkedge/ca/ca.crt
{{- end }}
{{- if .Values.edge.peers }}
peer-group: {{ include "tinkedge.fullname" . }}
lease-namespace: {{ .Release.Namespace }}
reports-key: /run/secrets/tinkedge/keys/reports.key
{{- end }}
{{- if .Values.server.tls.clientCA.secretName }}
grpc-client-ca: /run/secrets/tinkedge/client-ca/ca.crt
{{- end }}
{{- if include "tinkedge.needsKeys" . }}
agent-token-key: /run/secrets/tinkedge/keys/agent-token.key
{{- end }}
{{- end }}

{{- define "tinkedge.settings.controller" -}}
{{- include "tinkedge.settings.scope" . }}
lease-namespace: {{ .Release.Namespace }}
{{- if .Values.bmc.enabled }}
bmc: true
{{- if include "tinkedge.signsMedia" . }}
bmc-edge-url: {{ .Values.bmc.edgeURL | quote }}
metadata-token-key: /run/secrets/tinkedge/keys/metadata-token.key
{{- end }}
{{- end }}
{{- if .Values.discovery.enabled }}
discovery: true
{{- end }}
{{- if include "tinkedge.servesWebhooks" . }}
webhook-service: {{ .Release.Namespace }}/{{ include "tinkedge.webhookService" . }}
webhook-port: {{ .Values.controller.webhooks.port }}
{{- end }}
{{- if .Values.v1alpha1.enabled }}
serve-v1alpha1: true
{{- end }}
{{- if .Values.controller.webhooks.enabled }}
webhook-failure-policy: {{ .Values.controller.webhooks.failurePolicy }}
webhook-configuration: {{ include "tinkedge.webhookConfiguration" . }}
{{- else }}
disable: [webhooks]
{{- end }}
{{- end }}

{{- define "tinkedge.settings.metal3" -}}
{{- include "tinkedge.settings.scope" . }}
lease-namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "tinkedge.settings.metal3-webhook" -}}
webhook-service: {{ .Release.Namespace }}/{{ include "tinkedge.fullname" . }}-metal3-webhook
webhook-port: {{ .Values.metal3Webhook.port }}
{{- end }}

{{- /* The further HTTP ports in the edge's settings, comma-separated. */}}
{{- define "tinkedge.legacyPorts" -}}
{{- $given := get . "legacy-ports" | default "" -}}
{{- ternary (join "," $given) $given (kindIs "slice" $given) | nospace -}}
{{- end }}
