{{- define "tinkedge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- /* The labels of all objects. */}}
{{- define "tinkedge.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The selector of a role's pods: (list $ "edge"). Never change it: a Deployment's selector is immutable. */}}
{{- define "tinkedge.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* The metadata of a role's object: (list $ "edge" SUFFIX) */}}
{{- define "tinkedge.metadata" -}}
{{- $top := index . 0 -}}
{{- $suffix := "" -}}
{{- if gt (len .) 2 }}{{ $suffix = index . 2 }}{{ end -}}
name: {{ include "tinkedge.fullname" $top }}-{{ index . 1 }}{{ $suffix }}
namespace: {{ $top.Release.Namespace }}
labels:
  {{- include "tinkedge.labels" $top | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "tinkedge.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{- /* The values of a role, by the name of its command: (list $ "metal3-webhook") */}}
{{- define "tinkedge.valuesKey" -}}
{{- if eq . "metal3-webhook" }}metal3Webhook{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "tinkedge.serviceAccount" -}}
{{- $top := index . 0 -}}
{{- $account := (get $top.Values (include "tinkedge.valuesKey" (index . 1))).serviceAccount -}}
{{- default (ternary (printf "%s-%s" (include "tinkedge.fullname" $top) (index . 1)) "default" $account.create) $account.name -}}
{{- end }}

{{- /* "true" if the controller gives BMCs signed URLs of boot media, or nothing. */}}
{{- define "tinkedge.signsMedia" -}}
{{- if and .Values.controller.enabled .Values.bmc.enabled .Values.bmc.edgeURL -}}
true
{{- end -}}
{{- end }}

{{- /* "true" if the roles share keys, or nothing. */}}
{{- define "tinkedge.needsKeys" -}}
{{- $edge := mergeOverwrite (dict) .Values.settings .Values.edge.settings -}}
{{- $server := mergeOverwrite (dict) .Values.settings .Values.server.settings -}}
{{- if or .Values.keys.existingSecret (eq (get $edge "agent-auth" | default "") "token") (eq (get $server "agent-auth" | default "") "token") (get $edge "metadata-tokens") .Values.edge.peers (include "tinkedge.signsMedia" .) -}}
true
{{- end -}}
{{- end }}

{{- define "tinkedge.keysSecret" -}}
{{- default (printf "%s-keys" (include "tinkedge.fullname" .)) .Values.keys.existingSecret -}}
{{- end }}

{{- /* The Secret with the server's certificate; nothing without TLS. */}}
{{- define "tinkedge.tlsSecret" -}}
{{- if .Values.server.tls.certManager.enabled -}}
{{- default (printf "%s-server-tls" (include "tinkedge.fullname" .)) .Values.server.tls.secretName -}}
{{- else -}}
{{- .Values.server.tls.secretName -}}
{{- end -}}
{{- end }}

{{- /* The Secret with the authority that agents trust; nothing without TLS. */}}
{{- define "tinkedge.caSecret" -}}
{{- default (include "tinkedge.tlsSecret" .) .Values.server.tls.ca.secretName -}}
{{- end }}

{{- /* HOST:PORT that agents connect to. Empty: the edge that booted them. */}}
{{- define "tinkedge.authority" -}}
{{- with .Values.server.address -}}
{{- if regexMatch ":[0-9]+$" . }}{{ . }}{{ else }}{{ . }}:{{ $.Values.server.port }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "tinkedge.check.accounts" -}}
{{- $users := dict -}}
{{- range $role := list "edge" "server" "controller" "metal3" "metal3-webhook" -}}
{{- if (get $.Values (include "tinkedge.valuesKey" $role)).enabled -}}
{{- $account := include "tinkedge.serviceAccount" (list $ $role) -}}
{{- if hasKey $users $account -}}
{{- fail (printf "serviceAccount.name: %s and %s have the account %q in common, and each would have the rights of both: give them two (or make roles of your own, with rbac.create false)" (get $users $account) $role $account) -}}
{{- end -}}
{{- $_ := set $users $account $role -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Fail if values contradict each other. The schema checks each single value. */}}
{{- define "tinkedge.check" -}}
{{- $values := .Values -}}
{{- $value := `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?` -}}
{{- $key := printf `([-a-z0-9.]+/)?%s` $value -}}
{{- $one := printf `\s*(!\s*%[1]s|%[1]s(\s*(=|==|!=)\s*(%[2]s)?|\s+(in|notin)\s*\(\s*(%[2]s)?(\s*,\s*(%[2]s)?)*\s*\))?)\s*` $key $value -}}
{{- with $values.scope.hardwareSelector }}{{ if not (regexMatch (printf `^%[1]s(,%[1]s)*$` $one) .) -}}
{{- fail (printf "scope.hardwareSelector: %q is not a label selector such as site=berlin or 'site in (berlin,ulm)'" .) -}}
{{- end }}{{ end -}}
{{- if and $values.server.enabled (eq $values.server.mode "service") $values.edge.enabled (not $values.server.address) -}}
{{- fail "server.address: with server.mode service, edges have to tell agents where the Service is: the load balancer's address, or a name for it (or choose server.mode edges)" -}}
{{- end -}}
{{- if and $values.server.enabled (eq $values.server.mode "edges") (not $values.edge.enabled) -}}
{{- fail "server.mode: edges needs edge.enabled: servers stand beside edges (or choose server.mode service)" -}}
{{- end -}}
{{- if and $values.server.enabled (eq $values.server.mode "edges") (not $values.edge.hostNetwork) -}}
{{- fail "server.mode: edges needs edge.hostNetwork: servers have the addresses of their edges there (or choose server.mode service)" -}}
{{- end -}}
{{- if and $values.server.enabled (eq $values.server.mode "edges") (eq (int $values.server.healthPort) (int $values.edge.healthPort)) -}}
{{- fail "server.healthPort: with server.mode edges it is on the same node as edge.healthPort, and must be another" -}}
{{- end -}}
{{- if and $values.discovery.rules $values.controller.enabled (not $values.discovery.enabled) -}}
{{- fail "discovery.rules: needs discovery.enabled: without it, no controller approves or removes the machines that edges admit" -}}
{{- end -}}
{{- if and $values.edge.cache.hostPath $values.edge.cache.existingClaim -}}
{{- fail "edge.cache: hostPath or existingClaim, not both" -}}
{{- end -}}
{{- if and $values.edge.cache.existingClaim (or (eq $values.edge.kind "DaemonSet") (gt (int $values.edge.replicas) 1)) -}}
{{- fail "edge.cache.existingClaim: one cache is for one edge: edge.kind Deployment with replicas 1" -}}
{{- end -}}
{{- range $place, $settings := dict "settings" $values.settings "edge.settings" $values.edge.settings -}}
{{- if hasKey ($settings | default dict) "workers" -}}
{{- fail (printf "%s.workers was removed: take it out: one process serves all machines. If that is not enough, run a second edge (docs/edges.md)" $place) -}}
{{- end -}}
{{- end -}}
{{- if $values.rbac.create }}{{ include "tinkedge.check.accounts" . }}{{ end -}}
{{- if and $values.server.tls.certManager.enabled (not $values.server.tls.certManager.issuerRef.name) -}}
{{- fail "server.tls.certManager.issuerRef.name: which issuer of cert-manager's signs?" -}}
{{- end -}}
{{- end }}
