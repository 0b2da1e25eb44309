{{- /*
The pod of a role: (dict "top" $ "role" "edge" "hostNetwork" true "ports" LIST "mounts" LIST "volumes" LIST "readiness" DICT
"placement" VALUES "preStop" SECONDS). What differs between roles is said by the caller; everything that users may set is here, once.
*/}}
{{- define "tinkedge.pod" -}}
{{- $top := .top -}}
{{- $values := get $top.Values (include "tinkedge.valuesKey" .role) -}}
{{- $placement := .placement | default $values -}}
metadata:
  labels:
    {{- include "tinkedge.selector" (list $top .role) | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Pods are replaced when their start configuration changes.
    checksum/settings: {{ include "tinkedge.settings" (list $top .role) | sha256sum | trunc 16 }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "tinkedge.serviceAccount" (list $top .role) }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- if .hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $top.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $top.Values.priorityClass.create }}
  priorityClassName: {{ default (include "tinkedge.fullname" $top) $top.Values.priorityClass.name }}
  {{- else if $top.Values.priorityClass.name }}
  priorityClassName: {{ $top.Values.priorityClass.name }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- $security := $values.podSecurityContext }}
  {{- $mounts := and (has .role (list "edge" "server")) (or (include "tinkedge.needsKeys" $top) (include "tinkedge.tlsSecret" $top)) }}
  {{- if or $mounts (and (eq .role "controller") (include "tinkedge.signsMedia" $top)) }}
  {{- /* Files of Secrets are readable by this group only. */}}
  {{- $security = merge (dict) $security (dict "fsGroup" 65532) }}
  {{- end }}
  securityContext:
    {{- toYaml $security | nindent 4 }}
  {{- with $placement.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $placement.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $placement.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $placement.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{ toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "tinkedge.selector" (list $top $.role) | fromYaml)))) | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "tinkedge.image" $top | quote }}
      imagePullPolicy: {{ $top.Values.image.pullPolicy }}
      args:
        - {{ .role }}
        {{- range $values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- if .hostNetwork }}
        # On the address of the node, which the kubelet connects to, and not on those in the networks of machines.
        - name: HOST_IP
          valueFrom: {fieldRef: {fieldPath: status.hostIP}}
        {{- end }}
        {{- range list "HEALTH" "METRICS" }}
        - name: TINKEDGE_{{ . }}_ADDRESS
          value: {{ ternary "$(HOST_IP)" "0.0.0.0" $.hostNetwork }}:{{ $values.healthPort }}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- range .ports }}
        - {{ toJson . }}
        {{- end }}
        - {name: health, containerPort: {{ $values.healthPort }}, protocol: TCP}
      {{- with .preStop }}
      # Nodes learn of removed endpoints later than the pod stops. Until then new connections still arrive here.
      lifecycle:
        preStop: {exec: {command: [sleep, {{ . | quote }}]}}
      {{- end }}
      # A large inventory is read before the role serves.
      startupProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        {{- toYaml (.readiness | default (dict "httpGet" (dict "path" "/readyz" "port" "health"))) | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 3
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: settings, mountPath: /etc/tinkedge, readOnly: true}
        {{- range .mounts }}
        - {{ toJson . }}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: settings
      configMap: {name: {{ include "tinkedge.fullname" $top }}-{{ .role }}}
    {{- range .volumes }}
    - {{ toJson . }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- /* Some keys of a Secret as files of the same names: (list NAME SECRET KEYS). */}}
{{- define "tinkedge.secretFiles" -}}
{{- $items := list -}}
{{- range index . 2 -}}
{{- $items = append $items (dict "key" . "path" .) -}}
{{- end -}}
{{- toJson (dict "name" (index . 0) "secret" (dict "secretName" (index . 1) "defaultMode" 288 "items" $items)) -}}
{{- end }}

{{- /* A Secret as files of edge or server: (list NAME SECRET), or of one key alone (list NAME SECRET KEY FILE). */}}
{{- define "tinkedge.secretVolume" -}}
{{- $secret := dict "secretName" (index . 1) "defaultMode" 288 -}}
{{- if gt (len .) 2 -}}
{{- $_ := set $secret "items" (list (dict "key" (index . 2) "path" (index . 3))) -}}
{{- end -}}
{{- toJson (dict "name" (index . 0) "secret" $secret) -}}
{{- end }}
