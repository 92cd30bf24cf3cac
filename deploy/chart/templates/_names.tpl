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
{{- $count := int .Values.workers.count }}{{ if not $count }}{{ range .Values.allocation }}{{ $count = add $count (int .workers) }}{{ end }}{{ end -}}
{{- if not (int $count) }}{{ fail "no workers: give `allocation` or `workers.count`" }}{{ end -}}
{{ $count }}
{{- end }}

{{/* What every pod has. */}}
{{- define "arlo.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.images.pullSecrets }}
imagePullSecrets: [{{ range $i, $name := . }}{{ if $i }}, {{ end }}{name: {{ $name | quote }}}{{ end }}]
{{- end }}
{{- end }}

{{/* A value as TOML. YAML's whole numbers come as floats. */}}
{{- define "arlo.toml" -}}
{{- if kindIs "map" . -}}
{ {{- $first := true }}{{ range $key, $value := . }}{{ if not $first }}, {{ end }}{{ $first = false }}{{ $key | quote }} = {{ include "arlo.toml" $value }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[{{ range $index, $value := . }}{{ if $index }}, {{ end }}{{ include "arlo.toml" $value }}{{ end }}]
{{- else if kindIs "float64" . -}}
{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else -}}
{{ toRawJson . }}
{{- end }}
{{- end }}

{{/* Keys of a section, one a line; null leaves one out. */}}
{{- define "arlo.keys" -}}
{{- range $key, $value := . }}{{ if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "arlo.toml" $value }}
{{- end }}{{ end }}
{{- end }}

{{/* arlo.toml: what the chart knows, under it `config`; (dict "all" $ "admin" ADDRESS). */}}
{{- define "arlo.config" -}}
{{- $all := .all }}{{ $values := .all.Values }}
{{- $endpoints := list }}
{{- range $i := until (int (include "arlo.workers" $all)) }}
{{- $endpoints = append $endpoints (printf "%s-worker-%d.%s-workers:8001" $all.Release.Name $i $all.Release.Name) }}
{{- end }}
{{- $allocation := dict }}
{{- range $values.allocation }}{{ $_ := set $allocation (printf "%d" (int .length)) (int .workers) }}{{ end }}
{{- $gateway := dict "managed" false "grpc_address" "0.0.0.0:8001" "http_address" "0.0.0.0:8002" "admin_address" .admin "drain_delay_ms" 5000 }}
{{- if $values.gateway.api }}{{ $_ := set $gateway "api_address" "0.0.0.0:8080" }}{{ end }}
{{- if $values.gateway.tokenSecret }}{{ $_ := set $gateway "bearer_token_file" "/etc/arlo-token/token" }}{{ end }}
{{- if $values.gateway.tlsSecret }}
{{- $_ := set $gateway "tls_certificate_file" "/etc/arlo-tls/tls.crt" }}{{ $_ := set $gateway "tls_key_file" "/etc/arlo-tls/tls.key" }}
{{- end }}
{{- $known := dict "workers" (dict "kind" "endpoints" "endpoints" $endpoints "run_dir" "/var/lib/arlo") "gateway" $gateway "control" (dict "http_address" "0.0.0.0:8004") }}
{{- if $allocation }}{{ $_ := set $known "deployment" (dict "allocation" $allocation) }}{{ end }}
{{- if not (or $values.config.cascade $values.config.pipeline) }}
{{- $_ := set $known "model" (dict "repository" "/models" "slo_ms" $values.sloMs) }}
{{- end }}
{{- range $name, $section := $values.config }}
{{- if kindIs "map" $section }}
{{- $merged := get $known $name | default dict }}
{{- range $key, $value := $section }}{{ $_ := set $merged $key $value }}{{ end }}
{{- $_ := set $known $name $merged }}
{{- else }}{{ $_ := set $known $name $section }}{{ end }}
{{- end }}
{{- range $name, $section := $known }}
{{- if kindIs "slice" $section }}
{{- range $section }}
[[{{ $name }}]]
{{- include "arlo.keys" . }}
{{ end }}
{{- else }}
[{{ $name }}]
{{- include "arlo.keys" $section }}
{{ end }}
{{- end }}
{{- end }}

{{/* Files that the configuration names, for the gateway and the control plane: mounts and volumes. */}}
{{- define "arlo.secrets" -}}
{{- $secrets := deepCopy .Values.secrets }}
{{- with .Values.gateway.tokenSecret }}{{ $_ := set $secrets "arlo-token" . }}{{ end }}
{{- with .Values.gateway.tlsSecret }}{{ $_ := set $secrets "arlo-tls" . }}{{ end }}
{{- toJson $secrets }}
{{- end }}

{{- define "arlo.mounts" -}}
{{- range $folder, $secret := include "arlo.secrets" . | fromJson }}
- {name: {{ printf "secret-%s" $folder | quote }}, mountPath: {{ printf "/etc/%s" $folder | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "arlo.volumes" -}}
{{- range $folder, $secret := include "arlo.secrets" . | fromJson }}
- name: {{ printf "secret-%s" $folder | quote }}
  secret: {secretName: {{ $secret | quote }}, defaultMode: 288}
{{- end }}
{{- end }}
