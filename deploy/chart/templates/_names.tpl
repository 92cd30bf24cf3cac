{{/* Labels of an object; (dict "all" $ "part" "gateway"). */}}
{{- define "arlo.labels" -}}
app.kubernetes.io/name: {{ .part }}
app.kubernetes.io/part-of: arlo
app.kubernetes.io/instance: {{ .all.Release.Name }}
{{- end }}

{{/* What selects its pods. */}}
{{- define "arlo.selector" -}}
app.kubernetes.io/name: {{ .part }}
app.kubernetes.io/instance: {{ .all.Release.Name }}
{{- end }}

{{- define "arlo.claim" -}}
{{ .Values.models.claim | default (printf "%s-models" .Release.Name) }}
{{- end }}

{{- define "arlo.workers" -}}
{{- $count := 0 }}{{ range .Values.allocation }}{{ $count = add $count (int .workers) }}{{ end }}{{ $count -}}
{{- end }}

{{/* What every pod has. */}}
{{- define "arlo.pod" -}}
terminationGracePeriodSeconds: 40
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.images.pullSecrets }}
imagePullSecrets: [{{ range $i, $name := . }}{{ if $i }}, {{ end }}{name: {{ $name | quote }}}{{ end }}]
{{- end }}
{{- end }}

{{- define "arlo.config" -}}
[model]
repository = "/models"
slo_ms = {{ .Values.sloMs }}

[workers]
kind = "endpoints"
endpoints = [{{ range $i := until (int (include "arlo.workers" .)) }}{{ if $i }}, {{ end }}"{{ $.Release.Name }}-worker-{{ $i }}.{{ $.Release.Name }}-workers:8001"{{ end }}]
run_dir = "/var/lib/arlo"

[deployment]
allocation = { {{- range $i, $each := .Values.allocation }}{{ if $i }}, {{ end }}{{ $each.length }} = {{ $each.workers }}{{ end -}} }

[gateway]
managed = false
grpc_address = "0.0.0.0:8001"
http_address = "0.0.0.0:8002"
admin_address = "0.0.0.0:8003"
{{- if .Values.gateway.api }}
api_address = "0.0.0.0:8080"
{{- end }}
{{- if .Values.gateway.tokenSecret }}
bearer_token_file = "/etc/arlo-token/token"
{{- end }}

[control]
http_address = "0.0.0.0:8004"
{{ .Values.extraConfig }}
{{- end }}
